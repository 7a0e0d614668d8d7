"""Holds the ranks of a host that slept: they must not write before it is known whether they have been replaced."""

from __future__ import annotations

import os

from ..shared import light_signal as signal
from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .lease import Lease
    from .local_ranks import LocalRanks

_STOPPED = (b"T", b"t")


class RankHold:
    """Stops the ranks and all that they started, and continues them."""

    def __init__(self, ranks: LocalRanks) -> None:
        self._ranks = ranks
        self._held: set[int] = set()

    def follow(self, lease: Lease, now: float, *, is_ending: bool) -> None:
        """Hold the ranks if this host slept for so long that others may have replaced them."""
        lease.turn(now)
        if not is_ending and not lease.is_over(now):  # ranks whose lease is over are killed, not continued
            self.apply(lease.is_held(now))

    def apply(self, held: bool) -> None:
        """Stop what runs, also what others continue meanwhile, or continue what this has stopped."""
        if held:
            spawner = self._ranks.spawner
            spared = spawner.pids if spawner else set[int]()
            running = [pid for pid in processes.descendants(os.getpid()) if pid not in spared and _runs(pid)]
            self._held.update(running)
            processes.kill(running, signal.SIGSTOP)
        elif self._held:
            processes.kill(self._held, signal.SIGCONT)
            self._held.clear()


def _runs(pid: int) -> bool:
    fields = processes.stat(pid)[1]
    return bool(fields) and fields[0] not in _STOPPED
