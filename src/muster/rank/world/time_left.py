"""When the ranks of this host will be ended because a host is about to go away; the agent keeps it in a file."""

from __future__ import annotations

import mmap
import os

VARIABLE = "MUSTER_DEADLINE_FILE"

_mapped: dict[str, mmap.mmap] = {}
"""The file in memory, so that reading it in every step costs nothing."""


def read_deadline() -> float | None:
    """Seconds since 1970; None if nothing was announced, or another launcher started this process."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        if path not in _mapped:
            _mapped[path] = _map(path)
        return float(_mapped[path][:])
    except (OSError, ValueError):  # it is blank while there is no deadline
        return None


def _map(path: str) -> mmap.mmap:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(file, 0, prot=mmap.PROT_READ)
    finally:
        os.close(file)
