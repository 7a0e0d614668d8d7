"""Forwards signals to the ranks of this host, so that each reaches them only once."""

from __future__ import annotations

import time

from ..shared import light_signal as signal
from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .rank_process import Rank

PASS_ON_AFTER = 0.2
"""Seconds to wait for evidence that a scheduler's signal has reached the ranks directly."""


class SignalRelay:
    """Forwards signals of the controller or a scheduler, unless the ranks already have them."""

    def __init__(self, send: Callable[[Mapping[str, object]], None], running: Callable[[], Sequence[Rank]]) -> None:
        self.send = send
        self._running = running
        self.is_direct = False
        """Whether a scheduler that signals the agent signals its ranks too, but not the spawner."""
        self._requested: dict[int, float] = {}
        """Signals for the controller that the scheduler may be about to send, and when to send each to the ranks."""
        self._to_pass_on: dict[int, float] = {}
        """Signals of a scheduler, and when to forward each to the ranks."""
        self._strays: dict[int, float] = {}
        """When the spawner last received each signal."""
        self._passed_on: dict[int, float] = {}
        """When each signal was last forwarded."""
        self._signaled: dict[int, float] = {}
        """When each signal was last sent for the controller."""

    @property
    def is_busy(self) -> bool:
        """Whether a signal is waiting to be forwarded."""
        return bool(self._to_pass_on or self._requested)

    def signal(self, number: int) -> None:
        """Send a signal to the running ranks for the controller, unless the scheduler's has just reached them.

        PBS signals all processes of the first host, including the controller and the agent.
        """
        waits = self._to_pass_on.pop(number, None) is not None
        if (waits and _lately(self._strays, number)) or _lately(self._passed_on, number):
            return
        if self.is_direct:  # the controller was signaled first
            self._requested.setdefault(number, time.monotonic() + PASS_ON_AFTER)
        else:
            self._deliver(number)

    def _deliver(self, number: int) -> None:
        self._signaled[number] = time.monotonic()
        processes.kill([rank.pid for rank in self._running()], number)

    def pass_on(self, number: int) -> None:
        """Ensure that the ranks get a scheduler's signal once.

        Some schedulers signal every process of a job (Slurm with proctrack/linuxproc), some only those that they
        started (proctrack/cgroup). If the spawner has received it too, the ranks have as well.
        """
        if self.is_direct:
            self.on_stray(number)
        if self._running() and not self._requested.pop(number, 0) and not _lately(self._signaled, number):
            self._to_pass_on.setdefault(number, time.monotonic() + PASS_ON_AFTER)

    def on_stray(self, number: int) -> None:
        """The spawner has received a signal that was not meant for it."""
        self._strays[number] = time.monotonic()

    def step(self) -> None:
        """Forward the signals that are due."""
        now = time.monotonic()
        for number, due in list(self._requested.items()):
            if now >= due:
                del self._requested[number]
                self._deliver(number)
        for number, due in list(self._to_pass_on.items()):
            reached = _lately(self._strays, number)
            if now < due and not reached:
                continue
            del self._to_pass_on[number]
            self._passed_on[number] = now
            running = self._running()
            if number == signal.SIGTERM:
                waiting = [rank for rank in running if rank.stopped_at is None]
                for rank in running if reached else waiting:
                    rank.warned = True
                running = waiting
            processes.kill([] if reached else [rank.pid for rank in running], number)
            self.send({"t": "signal", "number": number, "ranks": [rank.number for rank in running]})


def _lately(times: dict[int, float], number: int) -> bool:
    return number in times and time.monotonic() - times[number] < PASS_ON_AFTER * 5
