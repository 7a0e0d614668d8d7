# row: 10
"""The script closes sys.stdout."""

import sys

print("before")
sys.stdout.close()
sys.stderr.write("stderr is open\n")
