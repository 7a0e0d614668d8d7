# row: 15
# args: --lr 0.1 "two words"
"""The command line that psutil and ps see is that of the script."""

import sys
from pathlib import Path

words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
print([word.decode() for word in words if word != b"-u"])
print([word for word in sys.orig_argv if word != "-u"])
print(Path("/proc/self/exe").resolve() == Path(sys.executable).resolve())
print(Path("/proc/self/comm").read_text().strip() in (Path(sys.executable).name, Path(sys.executable).resolve().name))
