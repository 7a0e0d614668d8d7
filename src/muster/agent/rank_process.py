"""The agent's state of one rank."""

from __future__ import annotations

import codecs
import fcntl
import os

from ..shared import light_socket as socket
from ..shared.wire import LineReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


_LONGEST_REPORT = 16 << 20
"""Maximum size of a report in bytes; the longest ones have the last collectives of a rank."""


def report_reader() -> LineReader:
    """A reader of the reports of a rank."""
    return LineReader(longest=_LONGEST_REPORT)


class Stream:
    """One descriptor of a rank that the agent reads: stdout (1), stderr (2) or its reports (3)."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank = rank
        self.number = number
        # Reports use a socket, so that the agent can send requests to the rank.
        self.read, self.write = os.pipe() if number < 3 else _socket_pair()
        os.set_blocking(self.read, False)
        # Bytes that are not valid UTF-8 are sent as lone surrogates and restored to the same bytes.
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.reports = report_reader()

    def close_read(self) -> None:
        """Close the agent's end."""
        if self.read >= 0:
            os.close(self.read)
            self.read = -1

    def close_write(self) -> None:
        """Close the rank's end in this process: the rank has it, or will never start."""
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
        """Whether a scheduler has already sent it SIGTERM."""
        self.paths: list[str] = []
        """The files that its exception is about."""
        self.thread = 0
        """The kernel's id of its thread that answers requests; 0 if there is none yet."""
        self.taken = False
        """Whether the script uses the stack trace signal for its own purposes."""
        self.stdin = 0
        """The descriptor that becomes its stdin; 0 is the agent's own stdin, /dev/null."""
        self.streams: list[Stream] = []
        self.stacks = -1
        """An in-memory file to which it appends its stack traces."""
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
        """Whether it can read the user's input."""
        return self.stdin != 0

    def ask(self, question: bytes) -> bool:
        """Send a one-byte request to its sampling thread; False if that is not possible."""
        try:
            return os.write(self.streams[2].read, question) == 1
        except OSError:
            return False  # it has closed its end, or has not read many earlier requests

    def close(self) -> None:
        """Close every descriptor that is still open."""
        for stream in self.streams:
            stream.close_read()
            stream.close_write()
        if self.stacks >= 0:
            os.close(self.stacks)
            self.stacks = -1
