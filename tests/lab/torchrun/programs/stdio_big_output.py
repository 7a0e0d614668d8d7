"""Writes 8 MB in long lines, short lines and one piece."""

import os
import sys

for number in range(20):
    print("x" * 100_000, number)
for number in range(20_000):
    sys.stdout.write(f"line {number}\n")
data = b"y" * 4_000_000 + b"\n"
while data:
    data = data[os.write(1, data) :]
print("done")
