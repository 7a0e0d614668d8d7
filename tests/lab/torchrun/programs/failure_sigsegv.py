# exit: 139
# ranks: 1
"""A crash in C code, with faulthandler enabled by the script."""

import ctypes
import faulthandler

faulthandler.enable()


def crash():
    ctypes.string_at(0)


crash()
