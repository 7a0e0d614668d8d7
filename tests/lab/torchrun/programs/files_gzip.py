# row: 11
"""A gzip file that the script leaves open, as far as Python itself completes it."""

import gzip
import os

file = gzip.open(f"{os.environ['OUT']}/rank-{os.environ['RANK']}.gz", "wb")
for number in range(1000):
    file.write(b"line %d\n" % number)
text = gzip.open(f"{os.environ['OUT']}/text-{os.environ['RANK']}.gz", "wt")
text.write("some text\n")
