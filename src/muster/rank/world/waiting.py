"""Waiting with a limit, and saying what for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

TALK_EVERY = 30.0
"""Seconds of silence before a waiting rank says what it waits for."""


def wait_for(ready: Callable[[], bool], limit: float, what: Callable[[], str], *, longest_pause: float = 0.02) -> bool:
    """Ask `ready` until it says yes (True) or `limit` seconds are over (False).

    Asking beats torch's own blocking waits, which write C++ frames to stderr when they time out.
    """
    start = time.monotonic()
    talk, pause = start + TALK_EVERY, 0.001
    while not ready():
        now = time.monotonic()
        if now - start >= limit:
            return False
        if now >= talk:
            talk += TALK_EVERY
            sys.stderr.write(f"muster: {what()} ({now - start:.0f} s of {limit:.0f} s)\n")
        time.sleep(min(pause, limit))
        pause = min(pause * 1.5, longest_pause)
    return True
