"""What mpiexec of MPICH and Intel MPI does for its ranks, over the socket that PMI_FD names: one line each way.

Only name publishing is used. It needs no PMI_Init and no barrier, so MPI itself can be started before or after it
(seen with mpi4py under MPICH 4.0 and 5.0).
"""

from __future__ import annotations

import os
import select

from muster.errors import MusterError

SERVICE = "muster"

LIMIT = 10.0
"""Seconds for an answer of mpiexec, which only has to look into its memory."""


def publish(value: str) -> None:
    """Let all ranks of this mpiexec see a value (without spaces)."""
    reply = _ask(f"cmd=publish_name service={SERVICE} port={value}")
    if reply.get("rc", "0") != "0":
        raise MusterError(
            f"mpiexec does not tell the other ranks where rank 0 is: {reply}",
            hint="set MASTER_ADDR and MASTER_PORT in all ranks",
        )


def withdraw() -> None:
    """Take the value back, so that a second program in the same job does not see that of the first."""
    _ask(f"cmd=unpublish_name service={SERVICE}")


def look_up() -> str | None:
    """The value that rank 0 has published, if it has."""
    return _ask(f"cmd=lookup_name service={SERVICE}").get("port")


def _ask(line: str) -> dict[str, str]:
    # No socket object with a timeout: that would make the descriptor non-blocking for MPI as well.
    descriptor = int(os.environ["PMI_FD"])
    reply = b""
    try:
        os.write(descriptor, line.encode() + b"\n")
        while not reply.endswith(b"\n"):
            if not select.select([descriptor], [], [], LIMIT)[0]:
                raise OSError(f"no answer within {LIMIT:.0f} s")
            piece = os.read(descriptor, 4096)
            if not piece:
                raise OSError("mpiexec has gone")
            reply += piece
    except (OSError, ValueError) as error:
        raise MusterError(
            f"mpiexec cannot be asked where rank 0 is (PMI_FD={descriptor}): {error}",
            hint="set MASTER_ADDR and MASTER_PORT in all ranks",
        ) from None
    return dict(word.split("=", 1) for word in reply.decode(errors="replace").split() if "=" in word)
