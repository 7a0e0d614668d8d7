"""When the ranks of this host will be ended because a host is about to go away; the agent keeps it in a file."""

from __future__ import annotations

import os

VARIABLE = "MUSTER_DEADLINE_FILE"


def read_deadline() -> float | None:
    """Seconds since 1970; None if nothing was announced, or another launcher started this process."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return float(os.read(file, 64))
    except (OSError, ValueError):  # it is empty while there is no deadline
        return None
    finally:
        os.close(file)
