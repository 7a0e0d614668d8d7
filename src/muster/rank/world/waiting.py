"""Waiting with a timeout and progress messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

TALK_EVERY = 30.0
"""Seconds between two messages of a waiting rank."""


def wait_for(ready: Callable[[], bool], limit: float, what: Callable[[], str], *, longest_pause: float = 0.02) -> bool:
    """Poll `ready` until it returns True; return False after `limit` seconds.

    Polling is better than torch's own blocking waits, which print C++ stack traces to stderr when they time out.
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
