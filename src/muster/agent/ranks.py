"""One rank as the agent holds it, and how all ranks of a host are ended."""

from __future__ import annotations

import codecs
import fcntl
import os
import signal
import socket
import time

from . import processes
from .wire import LineReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

KILL_LIMIT = 5.0
"""Seconds to wait for a killed process: one that hangs in the kernel (D state) outlives SIGKILL."""

_LAST_WORD = 0.5
"""Seconds to wait for the exit status of ranks that are gone."""


class Stream:
    """One descriptor of a rank that the agent reads: stdout (1), stderr (2) or its reports (3)."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank = rank
        self.number = number
        # Reports go over a socket, so that the rank can be asked for one.
        self.read, self.write = os.pipe() if number < 3 else _socket_pair()
        os.set_blocking(self.read, False)
        # Bytes that are no UTF-8 travel as lone surrogates and come out as the same bytes.
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.reports = LineReader()

    def close_read(self) -> None:
        """Close our end; nothing more is wanted from it."""
        if self.read >= 0:
            os.close(self.read)
            self.read = -1

    def close_write(self) -> None:
        """Close the rank's end here: it has it, or will never start."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1


def _socket_pair() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


class Rank:
    """One rank of the running attempt."""

    def __init__(self, number: int, env: Mapping[str, str]) -> None:
        self.number = number
        self.env = env
        self.pid = 0
        self.exited = False
        self.stopped_at: float | None = None
        self.warned = False
        """Whether a scheduler has sent it SIGTERM already."""
        self.paths: list[str] = []
        """The files that its exception is about."""
        self.thread = 0
        """The kernel's number of the thread in it that answers questions; 0 as long as there is none."""
        self.taken = False
        """Whether the script uses the signal that has it write its stacks for something else."""
        self.streams: list[Stream] = []
        self.stacks = -1
        """A file in memory to which it writes them, each write to the end."""
        try:
            self.stacks = os.memfd_create("muster stacks")
            fcntl.fcntl(self.stacks, fcntl.F_SETFL, os.O_APPEND)
            for kind in (1, 2, 3):
                self.streams.append(Stream(number, kind))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close every descriptor that is still open."""
        for stream in self.streams:
            stream.close_read()
            stream.close_write()
        if self.stacks >= 0:
            os.close(self.stacks)
            self.stacks = -1


class Stopping:
    """The end of all ranks: SIGTERM to each and to what they leave behind, then SIGKILL to all that still lives."""

    def __init__(self, ranks: Collection[Rank], spared: Collection[int], grace: float) -> None:
        self.ranks = ranks
        self.spared = spared
        """The spawner, which lives on for the next attempt, and the store, which ranks of other hosts may need."""
        self.kill_at = time.monotonic() + grace
        self._warned = {rank.pid for rank in ranks if rank.warned}
        now = time.time()
        for rank in ranks:
            if not rank.exited:
                rank.stopped_at = now
        if grace > 0:
            self.warn([rank.pid for rank in ranks if rank.pid and not rank.exited])

    def warn(self, pids: Collection[int]) -> None:
        """Ask processes to end, each once; a stopped one is woken, so that it hears it."""
        new = [pid for pid in pids if pid not in self._warned]
        self._warned.update(new)
        processes.kill(new, signal.SIGTERM)
        processes.kill(new, signal.SIGCONT)

    def hurry(self, grace: float) -> None:
        """Allow no more than `grace` seconds from now."""
        self.kill_at = min(self.kill_at, time.monotonic() + grace)

    def step(self) -> bool:
        """Do what is due now; True when nothing is left, or nothing more can be done."""
        now = time.monotonic()
        ranks_ended = all(rank.exited for rank in self.ranks)
        if now < self.kill_at and not ranks_ended:
            self.warn([rank.pid for rank in self.ranks if rank.pid and not rank.exited])
            return False
        left = self.left()
        if not left:
            # Nothing lives any more; the spawner's word on how each rank ended follows at once, if it can speak.
            return ranks_ended or now > self.kill_at + _LAST_WORD
        if now < self.kill_at:
            self.warn(left)  # what ranks started and did not end themselves
            return False
        processes.kill(left, signal.SIGKILL)
        return now > self.kill_at + KILL_LIMIT

    def left(self) -> list[int]:
        """Processes of the job that still live."""
        return [pid for pid in processes.descendants(os.getpid()) if pid not in self.spared]
