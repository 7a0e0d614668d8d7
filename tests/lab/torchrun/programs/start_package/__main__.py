# args: one two
"""Runs as `-m start_package`: relative imports, __spec__ and sys.argv as `python -m` has them."""

import sys

from .sibling import WORD

print(WORD, __name__, __package__, __file__)
print(__spec__.name, __spec__.origin, sys.argv, sys.path[0] or "the empty string")
print(sys._getframe().f_back.f_code.co_name, sys._getframe().f_back.f_back.f_code.co_name)
print(sys._getframe().f_back.f_back.f_back)
