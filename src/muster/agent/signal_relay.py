"""Forwards signals to the ranks of this host, so that each reaches them only once."""

from __future__ import annotations

import signal
import time

from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .rank_process import Rank

_PASS_ON_AFTER = 0.2
"""Seconds to wait for evidence that a scheduler's signal has reached the ranks directly."""


class SignalRelay:
    """Forwards signals of the controller or a scheduler, unless the ranks already have them."""

    def __init__(self, send: Callable[[Mapping[str, object]], None], running: Callable[[], Sequence[Rank]]) -> None:
        self.send = send
        self._running = running
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
        return bool(self._to_pass_on)

    def signal(self, number: int) -> None:
        """Send a signal to the running ranks for the controller, unless the scheduler's has just reached them.

        PBS signals all processes of the first host, including the controller and the agent.
        """
        waits = self._to_pass_on.pop(number, None) is not None
        if (waits and _lately(self._strays, number)) or _lately(self._passed_on, number):
            return
        self._signaled[number] = time.monotonic()
        processes.kill([rank.pid for rank in self._running()], number)

    def pass_on(self, number: int) -> None:
        """Ensure that the ranks get a scheduler's signal once.

        Some schedulers signal every process of a job (Slurm with proctrack/linuxproc), some only those that they
        started (proctrack/cgroup). If the spawner has received it too, the ranks have as well.
        """
        if self._running() and not _lately(self._signaled, number):
            self._to_pass_on.setdefault(number, time.monotonic() + _PASS_ON_AFTER)

    def on_stray(self, number: int) -> None:
        """The spawner has received a signal that was not meant for it."""
        self._strays[number] = time.monotonic()

    def step(self) -> None:
        """Forward the signals that are due."""
        now = time.monotonic()
        for number, due in list(self._to_pass_on.items()):
            reached = _lately(self._strays, number)
            if now < due and not reached:
                continue
            del self._to_pass_on[number]
            self._passed_on[number] = now
            running = self._running()
            if number == signal.SIGTERM:
                running = [rank for rank in running if rank.stopped_at is None]
                for rank in running:
                    rank.warned = True
            processes.kill([] if reached else [rank.pid for rank in running], number)
            self.send({"t": "signal", "number": number, "ranks": [rank.number for rank in running]})


def _lately(times: dict[int, float], number: int) -> bool:
    return number in times and time.monotonic() - times[number] < _PASS_ON_AFTER * 5
