"""Prints where Python looks for modules, and the working directory."""

import os
import sys

print(os.getcwd(), os.environ.get("PWD"))
for folder in sys.path:
    print(repr(folder))
print(sorted(os.listdir()))
