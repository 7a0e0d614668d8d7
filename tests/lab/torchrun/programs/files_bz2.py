# row: 11
"""A bz2 file that the script leaves open, as far as Python itself completes it."""

import bz2
import os

file = bz2.open(f"{os.environ['OUT']}/rank-{os.environ['RANK']}.bz2", "wb")
for number in range(1000):
    file.write(b"line %d\n" % number)
text = bz2.open(f"{os.environ['OUT']}/text-{os.environ['RANK']}.bz2", "wt")
text.write("some text\n")
