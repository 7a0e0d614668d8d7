"""Replaces itself by another program."""

import os
import sys

print("before", flush=True)
os.execv(sys.executable, [sys.executable, "-c", "import os; print('after', os.environ['RANK'])"])
