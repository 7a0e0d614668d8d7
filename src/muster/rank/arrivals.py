"""Inside a rank: when it came to its collectives, from which the slowest rank is found.

The times come from torch's flight recorder, which has the size that torch or the user gave it. Reading it costs 7
microseconds for each call it holds, 14 ms for the 2000 of torch's default, with the GIL held. So it is read at most
twice a second, and less often where that would take more than a five-hundredth of the time. All ranks look at the same
moments, whole and half seconds, and tell of what was before: so they tell the same calls also of a script that makes
thousands a second.
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
"""Calls in half a second that are told: all of them in most scripts, two kilobytes."""

_MOST_AT_ONCE = 512
"""Calls per message, where half a second is too often."""

_MOST_STEPS = 128
"""Steps of an optimizer per message."""

_PERIOD = 0.5
"""Seconds between two readings at least."""

_SHARE = 0.002
"""Of the time, which reading may take."""


class Arrivals:
    """Reads and tells; `step` is called often."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.made: deque[tuple[int, float, float]] = deque(maxlen=_MOST_STEPS)
        """The last steps of an optimizer: number, begin, end."""
        self._period = _PERIOD
        self._due = 0.0
        self._took = 0.0
        """Seconds of CPU a reading takes, on average."""
        self._told: dict[str, float] = {}
        """The number of the last call told, by group."""
        self._told_end = 0.0
        self._is_alone = os.environ.get("WORLD_SIZE") == "1"

    def step(self, moved: float) -> None:
        """Report when this rank came to its last collectives, if it is time and something has `moved`."""
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
        most = min(_MOST_AT_ONCE, int(_MOST * self._period / _PERIOD))
        groups: dict[str, list[list[float]]] = {}
        for group, calls in torch_adapter.recent_calls().items():
            told = self._told.get(group, 0)
            new = [call for call in calls if call[0] > told and call[1] <= before]
            if new:
                self._told[group] = new[-1][0]
                groups[group] = [[number, round(before - at, 6), *more] for number, at, *more in new[-most:]]
        steps = [
            [number, round(before - begin, 6), round(before - end, 6)]
            for number, begin, end in list(self.made)
            if self._told_end < end <= before
        ]
        self._told_end = before
        self.reporter.send({"t": "arrivals", "at": before, "groups": groups, "steps": steps})
