# exit: 3
# ranks: 1
"""Exits with code 3."""

import sys

print("before")
sys.exit(3)
