# row: 15
"""Sets its own title in the way setproctitle does: over its arguments, and the name of its main thread."""

import ctypes
from pathlib import Path

fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
start, end = int(fields[45]), int(fields[46])
words = Path("/proc/self/cmdline").read_bytes()
print(end - start == len(words), ctypes.string_at(start, end - start) == words)
ctypes.memmove(start, b"my title".ljust(end - start, b"\0"), end - start)
print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\0"))
ctypes.CDLL(None).prctl(15, b"trainer", 0, 0, 0)
print(Path("/proc/self/comm").read_text())
