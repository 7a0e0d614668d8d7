"""Asks Open MPI 5 for the host of rank 0, which is not in the environment.

A child process asks, because PMIx can be initialized and finalized only once per process, which is reserved for MPI
(observed with mpi4py under Open MPI 5.0: MPI can be initialized before or after the child has asked).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache

from muster.errors import MusterError

LIMIT = 20.0
"""Timeout in seconds for the child process, which takes 0.05 s."""

_LIBRARY = re.compile(r"\s(/\S*/libpmix\.so[.0-9]*)$", re.MULTILINE)

_ASK = """
import ctypes, sys

class Process(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]

class Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("string", ctypes.c_char_p)]

library = ctypes.CDLL(sys.argv[1])
me, nothing = Process(), ctypes.c_size_t(0)
if library.PMIx_Init(ctypes.byref(me), None, nothing):
    sys.exit("PMIx_Init failed")
value = ctypes.POINTER(Value)()
rank0 = Process(namespace=me.namespace, rank=0)
failed = library.PMIx_Get(ctypes.byref(rank0), b"pmix.hname", None, nothing, ctypes.byref(value))
name = None if failed else value.contents.string
library.PMIx_Finalize(None, nothing)
print(name.decode()) if name else sys.exit(f"PMIx_Get failed with {failed}")
"""


@cache
def host_of_rank_0() -> str:
    """Ask mpirun for the host name of rank 0."""
    argv = [sys.executable, "-I", "-c", _ASK, _library()]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
        trouble = done.stderr.strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as error:
        done, trouble = None, str(error)
    if done is None or done.returncode or not done.stdout.strip():
        raise MusterError(
            f"could not ask mpirun for the host of rank 0: {trouble}",
            hint="set it yourself: mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500 ...",
        )
    return done.stdout.strip()


def _library() -> str:
    """The PMIx library that mpirun's process on this host has loaded; another version would be incompatible."""
    process = os.getppid()
    while process > 1:
        try:
            with open(f"/proc/{process}/maps") as file:
                match = _LIBRARY.search(file.read())
            with open(f"/proc/{process}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
        if match:
            return match[1]
        process = parent
    return "libpmix.so.2"
