"""How long an agent may keep its ranks without contact: always less than its controller waits before it replaces them.

The controller gives a host up a fixed time after it last heard from it. Each ping says when that was, by the
controller's clock, and how many lines of the agent had arrived. A line cannot arrive before it was sent, which bounds
the difference between the two clocks from above. With it, the agent's lease ends no later than the controller's.
"""

from __future__ import annotations

from ..shared.light_collections import deque

_DRIFT = 2e-4
"""By how many seconds per second two clocks may drift apart."""

_WARN_AT = 0.9
"""The share of the lease after which ranks get SIGTERM; SIGKILL follows at its end."""

_NAP = 1.5
"""Seconds without a turn of the agent's loop after which the agent was itself stopped or frozen."""

_AFTER_NAP = 10.0
"""Seconds that ranks are held after such a stop, until the controller confirms that they are still wanted.

A scheduler that resumes a job may continue the controller some seconds later; ranks that are held do no harm.
"""


class Lease:
    """The lease of one agent; `now` is always a clock of its host that also counts while the host is suspended."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        self.granted = now
        """When the controller last heard from this agent, or earlier."""
        self._marks: deque[tuple[int, float]] = deque()
        self._offset = float("inf")
        """The controller's clock minus ours, at most."""
        self._learned = now
        self._turned = now
        self._woke = float("-inf")

    @property
    def end(self) -> float:
        """When all ranks must be gone."""
        return self.granted + self.seconds

    def sent(self, number: int, now: float) -> None:
        """Remember when line `number` was sent."""
        self._marks.append((number, now))

    def confirmed(self, got: int, clock: float, heard: float, now: float) -> None:
        """The controller, whose clock said `clock`, had `got` lines, and last heard this agent at `heard`."""
        sent = None
        while self._marks and self._marks[0][0] <= got:
            sent = self._marks.popleft()[1]
        if sent is not None:
            self._offset = min(self._offset + _DRIFT * (now - self._learned), clock - sent)
            self._learned = now
        self.granted = max(self.granted, min(now, heard - self._offset))

    def turn(self, now: float) -> None:
        """The agent's loop runs."""
        if now - self._turned > _NAP:
            self._woke = now
        self._turned = now

    def is_over(self, now: float) -> bool:
        """Whether the ranks must end now."""
        return self._is_late(now) and not self.is_held(now)

    def is_held(self, now: float) -> bool:
        """Whether ranks must not run until the controller has confirmed the lease, because this agent was stopped."""
        return self._is_late(now) and now - self._woke < _AFTER_NAP

    def _is_late(self, now: float) -> bool:
        return now - self.granted > self.seconds * _WARN_AT
