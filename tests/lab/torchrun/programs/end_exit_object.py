# exit: 1
# ranks: 1
"""Exits with an object that is neither number nor text."""

import sys

print("before")
sys.exit(["a", "list"])
