# row: 10
"""The script closes sys.stderr."""

import sys

sys.stderr.close()
print("after")
