"""A client of mpiexec's PMI service (MPICH, Intel MPI), over the socket in PMI_FD: one line each way.

Only name publishing is used. It needs no PMI_Init and no barrier, so MPI itself can be initialized before or after it.
But a rank that has sent a command must also finalize: if it exits without, mpiexec kills the other ranks on its host,
MPICH even silently and with exit code 0. (Observed with MPICH 4.0 and 5.0 and Intel MPI 2021.18, with and without
mpi4py.)
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import select
from functools import cache

from muster.errors import MusterError

SERVICE = "muster"
"""The name under which rank 0 publishes its address."""

_MPI_LIBRARY = re.compile(r"\s(/\S*/libmpi(?:ch|_abi|_ilp64)?\.so[.0-9]*)$", re.MULTILINE)

LIMIT = 10.0
"""Timeout in seconds for an answer of mpiexec, which only looks it up in memory."""


def publish(value: str) -> None:
    """Publish a value (without spaces) to all ranks of this mpiexec."""
    reply = _ask(f"cmd=publish_name service={SERVICE} port={value}")
    if reply.get("rc", "0") != "0":
        raise MusterError(
            f"could not publish the address of rank 0 through mpiexec: {reply}",
            hint="set MASTER_ADDR and MASTER_PORT for all ranks",
        )


def withdraw() -> None:
    """Unpublish the value, so that a second program in the same job does not see it."""
    _ask(f"cmd=unpublish_name service={SERVICE}")


def look_up() -> str | None:
    """The value that rank 0 has published, or None."""
    return _ask(f"cmd=lookup_name service={SERVICE}").get("port")


@cache
def _take_leave_at_exit() -> None:
    process, descriptor = os.getpid(), _descriptor()
    identity = os.fstat(descriptor).st_ino

    def take_leave() -> None:
        # A forked child must not finalize for its parent; MPI finalizes itself, and must do so last.
        try:
            if os.getpid() == process and os.fstat(descriptor).st_ino == identity and not _mpi_is_on():
                _exchange(descriptor, "cmd=finalize")
        except OSError:
            pass  # mpiexec has already exited

    atexit.register(take_leave)


def _mpi_is_on() -> bool:
    """Whether MPI is initialized in this process, by any loaded MPI library."""
    try:
        with open("/proc/self/maps") as file:
            libraries = set(_MPI_LIBRARY.findall(file.read()))
    except OSError:
        return False
    flag = ctypes.c_int(0)
    for path in libraries:
        ctypes.CDLL(path).MPI_Initialized(ctypes.byref(flag))
        if flag.value:
            return True
    return False


def _ask(line: str) -> dict[str, str]:
    try:
        _take_leave_at_exit()
        return _exchange(_descriptor(), line)
    except (OSError, ValueError) as error:
        raise MusterError(
            f"could not exchange the address of rank 0 with mpiexec (PMI_FD={os.environ['PMI_FD']}): {error}",
            hint="set MASTER_ADDR and MASTER_PORT for all ranks",
        ) from None


def _descriptor() -> int:
    return int(os.environ["PMI_FD"])


def _exchange(descriptor: int, line: str) -> dict[str, str]:
    # Not a socket object with a timeout, which would make the descriptor non-blocking for MPI as well.
    reply = b""
    os.write(descriptor, line.encode() + b"\n")
    while not reply.endswith(b"\n"):
        if not select.select([descriptor], [], [], LIMIT)[0]:
            raise OSError(f"no answer within {LIMIT:.0f} s")
        piece = os.read(descriptor, 4096)
        if not piece:
            raise OSError("mpiexec closed the connection")
        reply += piece
    return dict(word.split("=", 1) for word in reply.decode(errors="replace").split() if "=" in word)
