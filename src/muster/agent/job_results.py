"""Files that the ranks of a job with --sync have left on this host, for --fetch: found and read by a child process.

A file system that hangs holds up the child and not the agent, whose heartbeat continues.
"""

from __future__ import annotations

import os
import signal
from selectors import EVENT_READ

from ..shared.wire import LineReader, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from selectors import BaseSelector

    from ..shared.replies import ResultFile, ResultPart
    from ..shared.requests import ReadResults

_PIECE = 3 << 17
"""Bytes of a file in one message; base64 makes 512 KB of them."""

_PIPE = 1 << 20
"""Bytes that the pipe from the child holds."""

_BATCH = 200
"""Files that one message names."""

_NOTHING: ResultPart = {"files": [], "path": "", "piece": "", "problem": "", "over": False}


class ResultFiles:
    """What a child process finds or reads: one message for each request, so that no more is sent than is taken."""

    def __init__(
        self,
        selector: BaseSelector,
        transmit: Callable[[bytes], None],
        message: ReadResults,
        folder: str,
    ) -> None:
        self._selector = selector
        self._transmit = transmit
        self._reader = LineReader()
        self._ready: list[bytes] = []
        self._waiting: int | None = None
        """The request that gets the next message."""
        self._source, sink = os.pipe()
        _widen(sink)
        self._child = os.fork()
        if self._child == 0:
            _work(sink, message, folder)
        os.close(sink)

    def more(self, number: int) -> None:
        """Answer a request with the next message, now or when the child has it."""
        self._waiting = number
        if not self._ready and self._source not in self._selector.get_map():
            self._selector.register(self._source, EVENT_READ, self._on_data)
        self._answer()

    def _on_data(self) -> None:
        data = os.read(self._source, _PIPE)
        self._ready += self._reader.lines(data)
        if not data:  # its last message says `over`, unless it was killed
            died: ResultPart = {**_NOTHING, "problem": "the process that reads the files has died", "over": True}
            self._ready.append(encode(died).rstrip())
        if self._ready:
            self._selector.unregister(self._source)
        self._answer()

    def _answer(self) -> None:
        if self._ready and self._waiting is not None:
            self._transmit(b'{"re":%d,' % self._waiting + self._ready.pop(0)[1:] + b"\n")  # not decoded: it is long
            self._waiting = None

    def end(self) -> None:
        """End the child, whatever it does."""
        if self._source in self._selector.get_map():
            self._selector.unregister(self._source)
        os.close(self._source)
        try:
            os.kill(self._child, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and was reaped


def _widen(pipe: int) -> None:
    """Let the child be one message ahead, where the system allows it."""
    from fcntl import fcntl

    try:
        fcntl(pipe, 1031, _PIPE)  # F_SETPIPE_SZ of Linux, which Python 3.9 does not name
    except OSError:
        pass


def _work(sink: int, message: ReadResults, folder: str) -> None:
    """The child: write one line for each message, and exit."""
    code = 1
    try:
        parts = find(message["names"]) if message["what"] == "find" else read(message["names"])
        with os.fdopen(sink, "wb") as pipe:
            try:
                os.chdir(folder)
                for part in parts:
                    pipe.write(encode(part))
                    pipe.flush()
                pipe.write(encode({**_NOTHING, "over": True}))
            except OSError as error:
                pipe.write(encode({**_NOTHING, "problem": str(error), "over": True}))
        code = 0
    finally:
        os._exit(code)


def find(patterns: Sequence[str]) -> Iterator[ResultPart]:
    """The files that patterns name below the working directory, and those in directories that they name."""
    batch: list[ResultFile] = []
    for path in _matches(patterns):
        try:
            known = os.stat(path)
        except OSError:
            continue  # a link that leads nowhere, or a file that has just gone
        if (known.st_mode & 0o170000) == 0o100000:  # a regular file: a FIFO or a device would never end
            batch.append({"path": path, "size": known.st_size, "mtime_ns": known.st_mtime_ns})
        if len(batch) == _BATCH:
            yield {**_NOTHING, "files": batch}
            batch = []
    yield {**_NOTHING, "files": batch}


def _matches(patterns: Sequence[str]) -> Iterator[str]:
    from glob import iglob

    seen: set[str] = set()
    for pattern in patterns:
        for match in iglob(pattern, recursive=True):
            for path in _files_of(match):
                path = os.path.normpath(path)
                if path not in seen:
                    seen.add(path)
                    yield path


def _files_of(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in sorted(names))


def read(paths: Sequence[str]) -> Iterator[ResultPart]:
    """The contents of files, in pieces; a file ends with an empty piece, or with why it could not be read."""
    from base64 import b64encode

    for path in paths:
        try:
            with open(path, "rb") as file:
                while True:
                    piece = file.read(_PIECE)
                    yield {**_NOTHING, "path": path, "piece": b64encode(piece).decode()}
                    if not piece:
                        break
        except OSError as error:
            yield {**_NOTHING, "path": path, "problem": error.strerror or str(error)}
