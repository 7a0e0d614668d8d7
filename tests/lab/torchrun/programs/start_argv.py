# args: --lr 0.1 "two words" "" -x=1 "*" --standalone -- --help é
"""Prints its arguments exactly as they came."""

import sys

print(sys.argv)
