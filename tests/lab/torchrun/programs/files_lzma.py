# row: 11
"""A lzma file that the script leaves open, as far as Python itself completes it."""

import lzma
import os

file = lzma.open(f"{os.environ['OUT']}/rank-{os.environ['RANK']}.xz", "wb")
for number in range(1000):
    file.write(b"line %d\n" % number)
text = lzma.open(f"{os.environ['OUT']}/text-{os.environ['RANK']}.xz", "wt")
text.write("some text\n")
