# exit: 5
# ranks: 1
"""Leaves by os._exit(5) with output that nobody has flushed: ranks write through, as `python -u` does."""

import os
import sys

print("a line")
sys.stdout.write("without a newline")
os._exit(5)
