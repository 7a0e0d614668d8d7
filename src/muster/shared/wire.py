"""The channel between controller and agent: one JSON object per line, each way, after a greeting."""

from __future__ import annotations

from . import light_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

VERSION = 1
"""Version of the protocol between controller, agent, spawner and rank; incremented when a message changes."""

_GREETING_BEGIN, _GREETING_END = b"\x1emuster-agent ", b"\x1e\n"

GREETING = _GREETING_BEGIN + str(VERSION).encode() + _GREETING_END
"""The agent's first line, with its version. Output of a shell profile before it is skipped."""

HEARTBEAT = 0.5
"""Seconds between two pings from the controller."""

LEASE = 5.0
"""Seconds without contact after which the controller considers a host lost, if others wait to replace it.

Its agent has ended all ranks by then. Jobs that nobody waits for have longer (`spec.py`).
"""

LAST_GRACE = 3.0
"""Maximum grace period in seconds if the controller is lost."""


class ProtocolError(Exception):
    """The other side violated the protocol."""


class VersionError(ProtocolError):
    """The other side uses another version of the protocol."""


def check_version(theirs: object, who: str) -> None:
    """Raise VersionError unless the other side uses our version."""
    if theirs != VERSION:
        raise VersionError(f"{who} uses protocol version {theirs}, but this Muster uses version {VERSION}")


def encode(message: Mapping[str, object]) -> bytes:
    """Encode a message as a line."""
    return light_json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Decode a line to any JSON value, still to be validated; raises ProtocolError if it is invalid."""
    if line.count(b",") > _MOST_COMMAS:
        raise ProtocolError("a line has too many values")
    try:
        text = str(line, "utf-8")
        value = light_json.loads(text)
        if not _is_ascii(value) and ("\\ud" in text or "\\uD" in text):
            value = _writable(value)
    except (ValueError, RecursionError):
        raise ProtocolError("a line is not JSON in UTF-8") from None
    return value


def _is_ascii(value: Any) -> bool:
    """Whether a message has nothing but numbers and plain texts, as most have; a look into long texts takes longer."""
    try:
        values = value.values()
    except AttributeError:
        return False
    return all(one.isascii() if isinstance(one, str) else not isinstance(one, (dict, list)) for one in values)


def _writable(value: Any) -> Any:
    """Replace lone surrogates, which no file or terminal takes, unless all of them stand for bytes."""
    import json

    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return value


_MOST_COMMAS = 1 << 20
"""Maximum number of commas in a line: a value of three bytes takes 80 bytes of memory once it is decoded."""

_MOST_NOISE = 4096
"""Maximum number of bytes before the greeting that are kept."""

LONGEST_LINE = 64 << 20
"""Maximum size of a line in bytes; the longest ones, stack traces of many ranks, have less than a tenth of it."""


class LineReader:
    """Splits a byte stream into messages, at a cost that is linear in its size."""

    def __init__(self, *, greeting: bytes | None = None, longest: int = LONGEST_LINE) -> None:
        """`longest` is the maximum size of a line in bytes."""
        self.greeting = greeting
        self.noise: bytes = b""
        """The output before the greeting, which may explain why there is no greeting."""
        self._longest = longest
        self._parts: list[bytes] = []
        """The pieces of the line that is not complete yet."""
        self._size = 0

    @property
    def partial(self) -> bytes:
        """The part of a line that has arrived without its end."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages completed by `data`; each is any JSON value, still to be validated."""
        return [decode(line) for line in self.lines(data)]

    def lines(self, data: bytes) -> list[bytes]:
        """Return the lines completed by `data`; bytes before the greeting go to `noise`.

        Raises ProtocolError if a line is too long.
        """
        if self.greeting is not None:
            data = b"".join(self._parts) + data
            before, found, after = data.partition(self.greeting)
            self.noise = before[-_MOST_NOISE:]
            if not found:
                _check_greeting(data)
                self._parts = [self.noise]  # it may end with a partial greeting
                return []
            self.greeting, self._parts, data = None, [], after
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > self._longest or (others and max(map(len, others)) > self._longest):
            raise ProtocolError(f"a line has more than {self._longest} bytes")
        if not others:
            return []
        lines = [b"".join(self._parts), *others[:-1]]
        self._parts, self._size = [others[-1]], len(others[-1])
        return [line for line in lines if line]


def _check_greeting(data: bytes) -> None:
    """Raise VersionError if an agent of another version has sent its greeting."""
    version, end, _ = data.partition(_GREETING_BEGIN)[2].partition(_GREETING_END)
    if end:
        check_version(version.decode(errors="replace"), "its agent")


class Writer:
    """A buffered, non-blocking writer."""

    def __init__(self, fd: int, write: Callable[[bytes | bytearray], int]) -> None:
        self.fd = fd
        """The descriptor to watch for writing while data is pending."""
        self._write = write
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """The number of buffered bytes."""
        return len(self._buffer)

    def drop(self) -> bytes:
        """Discard the buffer, because the reader is gone or somebody else writes; returns what it held."""
        held = bytes(self._buffer)
        self._buffer.clear()
        return held

    def send(self, data: bytes) -> None:
        """Queue `data` and write what can be written now; raises BrokenPipeError if the reader is gone."""
        self._buffer += data
        self.flush()

    def flush(self) -> None:
        """Write as much of the buffer as the descriptor takes."""
        while self._buffer:
            try:
                written = self._write(self._buffer[: 1 << 16])
            except BlockingIOError:
                return
            del self._buffer[:written]
