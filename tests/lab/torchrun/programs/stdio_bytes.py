"""Bytes that are no UTF-8, NUL, colors, and all characters of Python's strings."""

import os
import sys

os.write(1, b"\xff\xfe\x00 bytes\n")
sys.stdout.buffer.write(b"\x80\x81\n")
print("\x1b[31mred\x1b[0m \u00e9 \u4e2d \U0001f600 tab\there")
print(sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.stdin.encoding)
try:
    print("\udc80")
except UnicodeEncodeError as error:
    print(error.reason)
