"""Text and binary files that the script leaves open are complete."""

import csv
import os

where = f"{os.environ['OUT']}/rank-{os.environ['RANK']}"
text = open(f"{where}.txt", "w")
text.write("text without a newline")
binary = open(f"{where}.bin", "wb")
binary.write(b"bytes" * 10)
both = open(f"{where}.both", "w+b")
both.write(b"read and write")
table = csv.writer(open(f"{where}.csv", "w", newline=""))
table.writerow([1, "two", 3.0])


def inner():
    kept = open(f"{where}.closure", "w")
    kept.write("held by a closure")
    return lambda: kept


function = inner()
print("to a file", file=open(f"{where}.temporary", "w"))
