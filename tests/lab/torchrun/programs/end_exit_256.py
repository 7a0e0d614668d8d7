# ranks: 1
"""Exits with code 256, of which the system keeps the low byte: success."""

import sys

print("before")
sys.exit(256)
