"""Signals for the ranks of this host: each reaches them once, whoever sends it and however often."""

from __future__ import annotations

import signal
import time

from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .rank_process import Rank

_PASS_ON_AFTER = 0.2
"""Seconds to wait for the sign that a scheduler's signal has reached the ranks by itself."""


class SignalRelay:
    """Sends on what the controller or a scheduler sends, unless the ranks have got it already."""

    def __init__(self, send: Callable[[Mapping[str, object]], None], running: Callable[[], Sequence[Rank]]) -> None:
        self.send = send
        self._running = running
        self._to_pass_on: dict[int, float] = {}
        """Signals of a scheduler, and when each is sent on to the ranks."""
        self._strays: dict[int, float] = {}
        """When the spawner last got each of them."""
        self._passed_on: dict[int, float] = {}
        """When each was last sent on."""
        self._signaled: dict[int, float] = {}
        """When the controller last had each of them sent."""

    @property
    def is_busy(self) -> bool:
        """Whether a signal waits to be passed on."""
        return bool(self._to_pass_on)

    def signal(self, number: int) -> None:
        """Send a signal to the ranks that run, for the controller, unless a scheduler's has just reached them.

        PBS signals the whole first host, the controller and the agent there among it.
        """
        waits = self._to_pass_on.pop(number, None) is not None
        if (waits and _lately(self._strays, number)) or _lately(self._passed_on, number):
            return
        self._signaled[number] = time.monotonic()
        processes.kill([rank.pid for rank in self._running()], number)

    def pass_on(self, number: int) -> None:
        """A scheduler has signaled us: see that the ranks get it once.

        Some signal every process of a job (Slurm with proctrack/linuxproc), some only those they started
        (proctrack/cgroup): if the spawner gets it too, the ranks have got it.
        """
        if self._running() and not _lately(self._signaled, number):
            self._to_pass_on.setdefault(number, time.monotonic() + _PASS_ON_AFTER)

    def on_stray(self, number: int) -> None:
        """The spawner has got a signal that was not for it."""
        self._strays[number] = time.monotonic()

    def step(self) -> None:
        """Pass on what is due."""
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
