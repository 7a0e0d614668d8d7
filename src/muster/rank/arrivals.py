"""Inside a rank: when it came to its collectives, told twice a second, from which the slowest rank is found.

The times come from torch's flight recorder. Reading it costs 8 microseconds for each call it holds, with the
interpreter's lock held, so it is made small (`torch_adapter.keep_recorder_small`), read at most twice a second, and
less often where that would take more than a five-hundredth of the time. All ranks look at the same moments, whole and
half seconds, and tell of what was before: so they tell the same calls also of a script that makes thousands a second.
"""

from __future__ import annotations

import os
import time
from collections import deque

from . import torch_adapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .reporter import Reporter

_MOST = 64
"""Calls per message: those of half a second in most scripts, two kilobytes."""

_PERIOD = 0.5
"""Seconds between two readings at least."""

_SHARE = 0.002
"""Of the time, which reading may take."""


class Arrivals:
    """Reads and tells; `step` is called often."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.made: deque[tuple[int, float, float]] = deque(maxlen=_MOST)
        """The last steps of an optimiser: number, begin, end."""
        self._period = _PERIOD
        self._due = 0.0
        self._took = 0.0
        """Seconds of CPU a reading takes, on average."""
        self._told: dict[str, float] = {}
        """The number of the last call told, by group."""
        self._told_end = 0.0
        self._is_alone = os.environ.get("WORLD_SIZE") == "1"

    def step(self, moved: float) -> None:
        """Tell, if it is time and something has `moved` since the last time."""
        now = time.time()
        if now < self._due or moved <= self._told_end or self._is_alone:
            return
        begin = time.thread_time()
        self._tell(now // self._period * self._period)
        self._took += (time.thread_time() - begin - self._took) / 8  # one reading may be slow by chance
        self._period = _PERIOD
        while self._period * _SHARE < self._took and self._period < 64:
            self._period *= 2
        self._due = (now // self._period + 1) * self._period

    def _tell(self, before: float) -> None:
        groups: dict[str, list[list[float]]] = {}
        for group, calls in torch_adapter.recent_calls().items():
            told = self._told.get(group, 0)
            new = [call for call in calls if call[0] > told and call[1] <= before]
            if new:
                self._told[group] = new[-1][0]
                groups[group] = [[number, round(before - at, 6), *more] for number, at, *more in new[-_MOST:]]
        steps = [
            [number, round(before - begin, 6), round(before - end, 6)]
            for number, begin, end in list(self.made)
            if self._told_end < end <= before
        ]
        self._told_end = before
        self.reporter.send({"t": "arrivals", "at": before, "groups": groups, "steps": steps})
