"""Stops all ranks of a host: SIGINT first after Ctrl-C, then SIGTERM, then SIGKILL."""

from __future__ import annotations

import os
import time

from ..rank.questions import MARK, MOVED
from ..shared import light_signal as signal
from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from ..shared.reports import Moved
    from .rank_process import Rank

KILL_LIMIT = 5.0
"""Seconds to wait for a killed process; one that hangs in the kernel (D state) survives SIGKILL."""

AFTER_SIGTERM = 2.0
"""Maximum number of seconds from SIGTERM to SIGKILL, for ranks that already had their grace period after SIGINT."""

_LAST_WORD = 0.5
"""Seconds to wait for the exit status of ranks that have exited."""

_MARK_LIMIT = 0.3
"""Seconds to wait for a rank to note where it is before SIGINT is sent anyway."""

_BETWEEN_QUESTIONS = 0.5
"""Seconds between two requests whether a rank has moved since SIGINT."""


def time_to_stop(grace: float, *, interrupt: bool) -> float:
    """Seconds until all ranks have received SIGKILL."""
    return grace + min(grace, AFTER_SIGTERM) if interrupt else grace


class Interrupt:
    """Ctrl-C for one rank: sends SIGINT once, then checks whether its main thread can handle it.

    A rank that is stuck in C code, for example in a collective, never runs its Python handler, however long it waits.
    To detect that, its sampling thread notes where the main thread is before the signal, and compares later.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.is_stuck = False
        self._is_marked = False
        self._due = time.monotonic() + _MARK_LIMIT
        self._sent = False
        if not (rank.thread and rank.ask(MARK)):
            self._send()

    def on_marked(self) -> None:
        """The rank has noted where it is."""
        self._is_marked = not self._sent  # useless if noted after the signal
        if not self._sent:
            self._send()

    def on_moved(self, report: Moved) -> None:
        """The rank reports whether it has moved since."""
        self.is_stuck = report["stuck"]
        self._is_marked = not report["moved"]

    def step(self, now: float) -> None:
        """Send the signal or a request, if due."""
        if now < self._due:
            return
        if not self._sent:
            self._send()
        elif self._is_marked:
            self._due = now + _BETWEEN_QUESTIONS
            self.rank.ask(MOVED)

    def _send(self) -> None:
        self._sent = True
        self._due = time.monotonic() + _BETWEEN_QUESTIONS
        processes.kill([self.rank.pid], signal.SIGINT)
        processes.kill([self.rank.pid], signal.SIGCONT)


class Stopping:
    """Stops all ranks and the processes that they leave behind: first with signals they can handle, then SIGKILL."""

    def __init__(
        self,
        ranks: Collection[Rank],
        spared: Collection[int],
        grace: float,
        *,
        interrupt: bool = False,
        patience: float = 0.0,
    ) -> None:
        """Begin; for `patience` seconds, a scheduler may be about to send SIGTERM itself."""
        self.ranks = ranks
        self.spared = spared
        """What does not belong to the ranks: the spawner and the store."""
        begin = time.monotonic()
        self.term_at = begin + (grace if interrupt else min(patience, grace / 2))
        self.kill_at = begin + time_to_stop(grace, interrupt=interrupt)
        self._after_sigterm = self.kill_at - self.term_at
        self._interrupted = interrupt
        self._interrupts: dict[int, Interrupt] = {}
        self._warned: set[int] = set()
        now = time.time()
        for rank in ranks:
            if not rank.exited:
                rank.stopped_at = now
        if grace > 0:
            self._warn_ranks()

    def warn(self, pids: Collection[int]) -> None:
        """Send SIGTERM to processes, once each, and SIGCONT to wake stopped ones."""
        new = [pid for pid in pids if pid not in self._warned]
        self._warned.update(new)
        processes.kill(new, signal.SIGTERM)
        processes.kill(new, signal.SIGCONT)

    def hurry(self, grace: float) -> None:
        """Reduce the remaining time to `grace` seconds."""
        self.kill_at = min(self.kill_at, time.monotonic() + grace)
        self.term_at = min(self.term_at, self.kill_at)

    def interrupt(self, rank: int) -> Interrupt | None:
        """The interrupt of a rank, if it got one."""
        return self._interrupts.get(rank)

    def step(self) -> bool:
        """Send the signals that are due; True if nothing is left, or nothing more can be done."""
        now = time.monotonic()
        ranks_ended = all(rank.exited for rank in self.ranks)
        if now < self.kill_at and not ranks_ended:
            self._warn_ranks()
            return False
        if ranks_ended and now < self.term_at:
            # The processes that they left behind do not get the ranks' remaining time.
            self.term_at = now
            self.kill_at = min(self.kill_at, now + self._after_sigterm)
        left = self.left()
        if not left:
            # All processes have exited; the spawner reports the exit status of each rank next, if it is alive.
            return ranks_ended or now > self.kill_at + _LAST_WORD
        if now < self.kill_at:
            self.warn(left)  # processes that the ranks started and did not end
            return False
        processes.kill(left, signal.SIGKILL)
        return now > self.kill_at + KILL_LIMIT

    def _warn_ranks(self) -> None:
        now = time.monotonic()
        running = [rank for rank in self.ranks if rank.pid and not rank.exited]
        self._warned.update(rank.pid for rank in running if rank.warned)
        if now >= self.term_at:
            self.warn([rank.pid for rank in running])
            return
        for rank in running if self._interrupted else ():
            if rank.number not in self._interrupts:
                self._interrupts[rank.number] = Interrupt(rank)
            interrupt = self._interrupts[rank.number]
            interrupt.step(now)
            if interrupt.is_stuck:
                self.warn([rank.pid])

    def left(self) -> list[int]:
        """Processes of the job that are still alive."""
        me = os.getpid()
        if processes.has_only(me, self.spared):
            return []
        return [pid for pid in processes.descendants(me) if pid not in self.spared]
