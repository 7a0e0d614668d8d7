# exit: 255
# ranks: 1
"""Exits with -1, which the system shows as 255."""

import sys

print("before")
sys.exit(-1)
