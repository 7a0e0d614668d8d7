"""Whether the process that answers belongs to this user: the owner of a port on this host, and MUNGE inside Slurm.

MUNGE is what Slurm itself uses to prove users to each other: a sealed text can be opened only by the user for whom it
was sealed, on any host of the cluster, and says who sealed it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess

_LIMIT = 10.0
"""Timeout in seconds for `munge` and `unmunge`, which take some milliseconds."""

_NOBODY = 65534
"""The user that the kernel shows for one who has no number in this container."""

_REPLAYED = 17
"""Exit code of `unmunge` for a text that was opened on this host before; it is shown nevertheless."""


def seal(secret: str) -> str:
    """Seal a secret for the processes of this user; empty if MUNGE does not work here."""
    done = _run(["munge", f"--restrict-uid={os.getuid()}"], secret)
    return done.stdout.strip() if done is not None and done.returncode == 0 else ""


def unseal(sealed: str) -> str:
    """The secret that a process of this user has sealed; empty if it was another user's, or is not valid."""
    done = _run(["unmunge", "--keys=UID", "--numeric", "--metadata=/dev/stderr", "--output=/dev/stdout"], sealed)
    if done is None or done.returncode not in (0, _REPLAYED):
        return ""
    owner = re.search(r"^UID:\s*(\d+)$", done.stderr, re.MULTILINE)
    return done.stdout.strip() if owner is not None and int(owner[1]) == os.getuid() else ""


def _run(argv: list[str], text: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_LIMIT)
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return None  # it is not installed, or hangs


def is_of_another_user(connection: socket.socket) -> bool:
    """Whether a connection leads to a port of this host on which only other users listen."""
    address, port = connection.getpeername()[:2]
    if address != connection.getsockname()[0]:
        return False
    owners: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        owners |= {int(row[7]) for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return bool(owners) and not owners & {os.getuid(), _NOBODY}
