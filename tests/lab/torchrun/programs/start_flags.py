# ranks: 1
"""Prints the flags of the interpreter and of its standard streams."""

import os
import sys

print(sys.flags, sys.warnoptions, sys._xoptions)
print(sys.executable, os.path.relpath(sys.executable, sys.prefix), sys.exec_prefix == sys.prefix)
print(os.path.relpath(os.__file__, sys.base_prefix))
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.getfilesystemencoding(), sys.getdefaultencoding())
print(sys.byteorder, sys.platform, sys.float_repr_style, sys.dont_write_bytecode, sys.pycache_prefix)
