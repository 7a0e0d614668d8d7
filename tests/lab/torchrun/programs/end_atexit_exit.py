# ranks: 1
"""sys.exit() in an atexit function."""

import atexit
import sys

atexit.register(print, "ran afterwards")
atexit.register(sys.exit, 7)
print("script done")
