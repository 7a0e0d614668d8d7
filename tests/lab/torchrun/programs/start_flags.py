# ranks: 1
"""Prints the flags of the interpreter and of its standard streams."""

import sys

print(sys.flags, sys.warnoptions, sys._xoptions)
print(sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.getfilesystemencoding(), sys.getdefaultencoding())
print(sys.byteorder, sys.platform, sys.float_repr_style, sys.dont_write_bytecode, sys.pycache_prefix)
