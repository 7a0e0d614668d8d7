# row: 10
"""sys.stdout and sys.stderr are None, as under pythonw: print() does nothing."""

import os
import sys

print("before")
sys.stdout = sys.stderr = None
print("lost")
os.write(1, b"after\n")
