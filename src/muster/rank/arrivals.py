"""Reports when a rank arrived at its collectives, from which the controller detects stragglers.

The times come from torch's flight recorder, whose size torch or the user sets. Reading it takes 7 microseconds per
recorded call, 14 ms for torch's default of 2000, with the GIL held. So it is read at most twice a second, and less
often if that would take more than 0.2 % of the time. All ranks read at the same moments, whole and half seconds, and
report the calls before that moment, so they report the same calls even if a script makes thousands per second.
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
"""Maximum number of reported calls per half second: all calls of most scripts, two kilobytes."""

_MOST_AT_ONCE = 512
"""Maximum number of calls per message if it covers more than half a second."""

_MOST_STEPS = 128
"""Maximum number of optimizer steps per message."""

_PERIOD = 0.5
"""Minimum number of seconds between two readings."""

_SHARE = 0.002
"""Maximum share of time spent on reading."""


class Arrivals:
    """Reads and reports arrivals; `step` is called often."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.made: deque[tuple[int, float, float]] = deque(maxlen=_MOST_STEPS)
        """The last optimizer steps: number, begin, end."""
        self._period = _PERIOD
        self._due = 0.0
        self._took = 0.0
        """Average CPU time of a reading in seconds."""
        self._reported: dict[str, float] = {}
        """The number of the last reported call, by group."""
        self._reported_until = 0.0
        self._is_alone = os.environ.get("WORLD_SIZE") == "1"

    def step(self, moved: float) -> None:
        """Report when this rank arrived at its last collectives, if a report is due and it made progress since."""
        now = time.time()
        if now < self._due or moved <= self._reported_until or self._is_alone:
            return
        begin = time.thread_time()
        self._report(now // self._period * self._period)
        self._took += (time.thread_time() - begin - self._took) / 8  # one reading may be slow by chance
        self._period = _PERIOD
        while self._period * _SHARE < self._took and self._period < 64:
            self._period *= 2
        self._due = (now // self._period + 1) * self._period

    def _report(self, before: float) -> None:
        most = min(_MOST_AT_ONCE, int(_MOST * self._period / _PERIOD))
        groups: dict[str, list[list[float]]] = {}
        for group, calls in torch_adapter.recent_calls().items():
            last = self._reported.get(group, 0)
            new = [call for call in calls if call[0] > last and call[1] <= before]
            if new:
                self._reported[group] = new[-1][0]
                groups[group] = [[number, round(before - at, 6), *more] for number, at, *more in new[-most:]]
        steps = [
            [number, round(before - begin, 6), round(before - end, 6)]
            for number, begin, end in list(self.made)
            if self._reported_until < end <= before
        ]
        self._reported_until = before
        self.reporter.send({"t": "arrivals", "at": before, "groups": groups, "steps": steps})
