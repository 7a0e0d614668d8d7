"""One rank as the agent holds it."""

from __future__ import annotations

import codecs
import fcntl
import os
import socket

from ..shared.wire import LineReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


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
        self.stdin = 0
        """The descriptor that becomes its stdin; the agent's own, 0, is /dev/null."""
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

    @property
    def has_stdin(self) -> bool:
        """Whether it can read what the user types or pipes."""
        return self.stdin != 0

    def ask(self, question: bytes) -> bool:
        """Write one byte for the thread in it that answers; False where that cannot be."""
        try:
            return os.write(self.streams[2].read, question) == 1
        except OSError:
            return False  # it has closed its end, or has not read a thousand questions before

    def close(self) -> None:
        """Close every descriptor that is still open."""
        for stream in self.streams:
            stream.close_read()
            stream.close_write()
        if self.stacks >= 0:
            os.close(self.stacks)
            self.stacks = -1
