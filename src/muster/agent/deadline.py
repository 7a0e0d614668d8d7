"""Warns the ranks of this host that the job is about to be moved: the deadline in a file, and one signal.

The file is in memory and belongs to the agent; ranks find it by an environment variable, so nothing is left behind.
"""

from __future__ import annotations

import os
import time

from ..shared import machine, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..shared.replies import Warned
    from ..shared.requests import Deadline as SetDeadline
    from .rank_process import Rank

VARIABLE = "MUSTER_DEADLINE_FILE"
"""Path of a file with the deadline in seconds since 1970; it is blank while there is none."""

_LENGTH = 64
"""Bytes of the file, which never change, because ranks keep it mapped."""

_LOOK_AGAIN = 0.1
"""Seconds between two looks at ranks that do not handle the signal yet."""


class Deadline:
    """The deadline of this host's ranks, and the signal that announces it."""

    def __init__(self, left: Callable[[], Sequence[Rank]]) -> None:
        self._left = left
        """The ranks that have not ended, including those that are about to start."""
        self._file = os.memfd_create("muster deadline")
        self._write("")
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        self._signal = 0
        self._waiting: set[int] = set()
        """Ranks that would be killed by the signal, because they have no handler for it (yet)."""
        self._due = 0.0

    def announce(self, message: SetDeadline, request: int) -> Warned:
        """Write the deadline to the file, then signal the ranks; one without a handler gets it once it has one."""
        self._write(f"{message['time']:.3f}")
        self._signal = message["signal"]
        ranks = [rank.number for rank in self._left()]
        self._waiting = set(ranks) if self._signal else set()
        self._send()
        return {"ranks": ranks, "unheard": sorted(self._waiting)}

    def close(self) -> None:
        """Close the file: the job is over."""
        os.close(self._file)

    def clear(self) -> None:
        """Forget the deadline: the next ranks have none."""
        self._write("")
        self._waiting.clear()

    def step(self) -> None:
        """Signal the ranks that have installed a handler meanwhile."""
        if self._waiting and time.monotonic() >= self._due:
            self._send()

    def _write(self, text: str) -> None:
        os.pwrite(self._file, text.ljust(_LENGTH - 1).encode() + b"\n", 0)

    def _send(self) -> None:
        self._due = time.monotonic() + _LOOK_AGAIN
        waiting = [rank for rank in self._left() if rank.number in self._waiting]
        ready = [rank for rank in waiting if rank.pid and survives(rank.pid, self._signal)]
        self._waiting = {rank.number for rank in waiting} - {rank.number for rank in ready}
        processes.kill([rank.pid for rank in ready], self._signal)


def survives(pid: int, number: int) -> bool:
    """Whether a process handles or ignores a signal, which would kill it otherwise."""
    bit = 1 << (number - 1) if 0 < number < 65 else 0
    for line in machine.read_text(f"/proc/{pid}/status").splitlines():
        name, _, mask = line.partition(":")
        if name in ("SigCgt", "SigIgn") and int(mask, 16) & bit:
            return True
    return False
