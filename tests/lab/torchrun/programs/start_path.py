"""Prints where Python looks for modules, and the working directory."""

import os
import sys

print(os.getcwd(), os.environ.get("PWD"))
print(repr(sys.path[0]))
for folder in sys.path[1:]:
    print(repr(folder.replace(sys.base_prefix, "BASE").replace(os.path.dirname(sys.prefix), "PROJECT")))
print(sorted(os.listdir()))
