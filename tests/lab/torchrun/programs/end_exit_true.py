# exit: 1
# ranks: 1
"""Exits with True, which is 1."""

import sys

print("before")
sys.exit(True)
