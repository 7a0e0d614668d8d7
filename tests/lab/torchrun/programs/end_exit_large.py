# exit: 5
# ranks: 1
"""Exits with a number that does not fit into a C int."""

import sys

print("before")
sys.exit(2**40 + 5)
