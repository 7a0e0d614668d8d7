"""Sent lines that may have to be sent again: both sides of a channel count lines, and say how many they got."""

from __future__ import annotations

from .light_collections import deque
from .wire import ProtocolError


class LineLog:
    """The lines that one side has sent and the other side has not acknowledged."""

    def __init__(self) -> None:
        self.count = 0
        """How many lines have been sent in all."""
        self.size = 0
        """The number of bytes that are not acknowledged."""
        self._lines: deque[bytes] = deque()

    @property
    def kept(self) -> bytes:
        """The lines that are not acknowledged."""
        return b"".join(self._lines)

    def add(self, data: bytes) -> None:
        """Add complete lines."""
        lines = [data] if data.find(b"\n") == len(data) - 1 else [line + b"\n" for line in data.split(b"\n")[:-1]]
        self._lines.extend(lines)
        self.count += len(lines)
        self.size += len(data)

    def acknowledge(self, got: int) -> None:
        """Forget the first `got` lines, which have arrived; raises ProtocolError if so many were never sent."""
        if got > self.count:
            raise ProtocolError(f"{got} lines acknowledged, but only {self.count} were sent")
        while got > self.count - len(self._lines):
            self.size -= len(self._lines.popleft())

    def can_resume(self, got: int) -> bool:
        """Whether everything after the first `got` lines is still here."""
        return self.count - len(self._lines) <= got <= self.count

    def after(self, got: int) -> bytes:
        """The lines to send again to a side that got `got` lines; it acknowledges those."""
        self.acknowledge(got)
        return b"".join(self._lines)
