"""Finds and reads the files that the ranks of a job with --sync left on this host, for --fetch, in a child process.

A hanging file system blocks only the child, not the agent and its heartbeat.
"""

from __future__ import annotations

import os

from ..shared import light_signal as signal
from ..shared.light_selectors import EVENT_READ
from ..shared.wire import LineReader, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..shared.light_selectors import Selector
    from ..shared.replies import ResultFile, ResultPart
    from ..shared.requests import ReadResults

_PIECE = 3 << 17
"""Bytes of a file per message, 512 KB in base64."""

_PIPE = 1 << 20
"""Capacity in bytes of the pipe from the child."""

_BATCH = 200
"""Maximum number of files listed per message."""

_NOTHING: ResultPart = {"files": [], "path": "", "piece": "", "problem": "", "over": False}


class ResultFiles:
    """The output of the child process: one message per request, so that the controller sets the pace."""

    def __init__(
        self,
        selector: Selector,
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
        """Answer a request with the next message, as soon as the child has one."""
        self._waiting = number
        if not self._ready and self._source not in self._selector.get_map():
            self._selector.register(self._source, EVENT_READ, self._on_data)
        self._answer()

    def _on_data(self) -> None:
        data = os.read(self._source, _PIPE)
        self._ready += self._reader.lines(data)
        if not data:  # its last message contains `over`, unless it was killed
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
        """Kill the child."""
        if self._source in self._selector.get_map():
            self._selector.unregister(self._source)
        os.close(self._source)
        try:
            os.kill(self._child, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has exited and was reaped


def _widen(pipe: int) -> None:
    """Enlarge the pipe, if the system allows it, so that the child can be one message ahead."""
    from fcntl import fcntl

    try:
        fcntl(pipe, 1031, _PIPE)  # F_SETPIPE_SZ of Linux, which Python 3.9 does not name
    except OSError:
        pass


def _work(sink: int, message: ReadResults, folder: str) -> None:
    """Run in the child: write one line per message, and exit."""
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
    """The files below the working directory that match the patterns, and those in matching directories."""
    batch: list[ResultFile] = []
    for path in _matches(patterns):
        try:
            known = os.stat(path)
        except OSError:
            continue  # a broken link, or a file that has just been removed
        if (known.st_mode & 0o170000) == 0o100000:  # only regular files: a FIFO or a device may never end
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
