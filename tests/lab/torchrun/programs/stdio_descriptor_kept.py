"""Redirects descriptor 1 to a file for a while, as a library does to silence C code."""

import os

print("one", flush=True)
kept = os.dup(1)
file = os.open(f"{os.environ['OUT']}/rank-{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT)
os.dup2(file, 1)
print("two", flush=True)
os.system("echo from a child")
os.dup2(kept, 1)
print("three")
