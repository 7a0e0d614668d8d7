# row: 8
# ranks: 1
# stdin: bob\nalice\n
"""Reads names from standard input."""

import sys

print("hello", input())
print(list(sys.stdin))
