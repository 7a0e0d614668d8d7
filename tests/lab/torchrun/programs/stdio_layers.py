"""print, os.write and C's printf: what the C library still has is written at the end."""

import ctypes
import os

libc = ctypes.CDLL(None)
print("print", flush=True)
os.write(1, b"os.write\n")
os.write(2, b"to stderr\n")
libc.printf(b"printf %d\n", ctypes.c_int(3))
