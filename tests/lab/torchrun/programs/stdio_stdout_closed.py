# row: 10
"""The script closes sys.stdout."""

import os
import sys

print("before")
sys.stdout.close()
os.write(1, b"the descriptor is closed too\n") if False else None
sys.stderr.write("stderr is open\n")
