"""The files of a job, written by a separate thread: neither a stalled terminal nor a slow disk blocks the job."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from muster.output.lines import as_bytes

_MOST_QUEUED = 256 << 20
"""Bytes that may be queued for a slow disk; more is dropped and reported."""

_MOST_OPEN = 64
"""Maximum number of open files."""

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file is opened: one that is a link leads out of the job directory."""

ORDER = "order"
"""File beside the ranks' files with a line `RANK STREAM BYTES TIME` for each piece of output, in the order they came.

STREAM is 1 for stdout and 2 for stderr, BYTES the length of the piece in the file of the rank, and TIME when the
controller received it, in milliseconds since 1970. The lengths of a rank's pieces add up to offsets in its file:
`muster.jobs.log_reader` reads this file (`LogTimes` says when a byte was written). Older versions wrote no TIME.
"""


class LogFiles:
    """Appends the exact output of ranks to one file per rank, and replaces other files atomically."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._queued = 0
        self._lock = threading.Lock()
        self._files: dict[Path, BinaryIO] = {}
        self._failed: set[Path] = set()
        self._thread = threading.Thread(target=self._work, name="muster-logs", daemon=True)
        self._thread.start()

    def write(self, path: Path, text: str, order: str = "") -> None:
        """Queue text for a file, which is created on the first write.

        With `order`, the rank and the stream, ORDER beside it gets a line with the length and the time.
        """
        data = as_bytes(text)
        with self._lock:
            is_full = self._queued > _MOST_QUEUED
            self._queued += 0 if is_full else len(data)
        if is_full:  # without the lock: the report may be written here too
            self._give_up(path, "the disk is too slow")
        else:
            record = f"{order} {len(data)} {time.time_ns() // 1_000_000}\n" if order else ""
            self._queue.put(partial(self._add, path, data, record))

    def replace(self, path: Path, make: Callable[[], bytes]) -> None:
        """Queue new content for a file, made in the writing thread; readers see either the old or the new one."""
        self._queue.put(partial(self._replace, path, make))

    def rotate(self, path: Path) -> None:
        """Queue the rotation of a file: the old one gets the suffix `.1`, and only this user can read the new one."""
        self._queue.put(partial(self._rotate, path))

    def close(self, limit: float = 30.0) -> None:
        """Write what is queued, but wait at most `limit` seconds."""
        self._queue.put(None)
        self._thread.join(limit)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            if self._queue.empty():
                self._close_files()
        self._close_files()

    def _add(self, path: Path, data: bytes, record: str) -> None:
        if self._append(path, data) and record:
            self._append(path.with_name(ORDER), record.encode())
        with self._lock:
            self._queued -= len(data)

    def _replace(self, path: Path, make: Callable[[], bytes]) -> None:
        self._close_files()  # a reader who sees that the job has ended must find all output
        new = path.with_name(f".{path.name}.new")
        try:
            new.write_bytes(make())
            new.replace(path)
        except Exception as error:  # an error in `make` must not end this thread
            if path not in self._failed:  # reported once, but tried again
                self._failed.add(path)
                why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                self._warn(f"could not write {path}: {why or error}")

    def _rotate(self, path: Path) -> None:
        self._close_files()
        try:
            if path.exists():
                path.replace(path.with_name(f"{path.name}.1"))
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
        except OSError as error:
            self._give_up(path, error.strerror or str(error))

    def _append(self, path: Path, data: bytes) -> bool:
        """Whether the write succeeded."""
        if path in self._failed:
            return False
        try:
            file = self._files.get(path)
            if file is None:
                # A reader who sees the directory of the next attempt must find all output of the previous one.
                if len(self._files) >= _MOST_OPEN or not path.parent.exists():
                    self._close_files()
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = self._files[path] = open(os.open(path, _APPEND, 0o600), "ab")  # noqa: SIM115
            file.write(data)
        except (OSError, ValueError) as error:  # ValueError: a path that no file can have
            self._give_up(path, getattr(error, "strerror", None) or str(error))
            return False
        return True

    def _close_files(self) -> None:
        """Close all files, so that readers see the data and descriptors are not exhausted."""
        for path, file in self._files.items():
            try:
                file.close()
            except OSError as error:
                self._give_up(path, error.strerror or str(error))
        self._files.clear()

    def _give_up(self, path: Path, why: str) -> None:
        if path not in self._failed:
            self._failed.add(path)
            self._warn(f"Muster stopped writing {path}: {why}")
