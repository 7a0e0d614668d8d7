# exit: 1
# ranks: 1
"""Exits with a text: it goes to stderr, and the code is 1."""

import sys

print("before")
sys.exit("the reason")
