"""The ranks' log files, written by a thread of their own: a stalled terminal does not hold them up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from muster.logs.lines import as_bytes

_MOST_QUEUED = 256 << 20
"""Bytes that may wait for a disk that hangs; more is dropped, with a word."""

_MOST_OPEN = 64
"""Files held open at a time."""


class LogFiles:
    """Appends exactly what ranks wrote to one file per rank."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._queue: queue.SimpleQueue[tuple[Path, bytes] | None] = queue.SimpleQueue()
        self._queued = 0
        self._lock = threading.Lock()
        self._files: dict[Path, BinaryIO] = {}
        self._failed: set[Path] = set()
        self._thread = threading.Thread(target=self._work, name="muster-logs", daemon=True)
        self._thread.start()

    def write(self, path: Path, text: str) -> None:
        """Queue text for a file, which is made when it is first written to."""
        data = as_bytes(text)
        with self._lock:
            if self._queued > _MOST_QUEUED:
                self._give_up(path, "the disk does not keep up")
                return
            self._queued += len(data)
        self._queue.put((path, data))

    def close(self, limit: float = 30.0) -> None:
        """Write out what is queued; a disk that hangs holds us no longer than `limit` seconds."""
        self._queue.put(None)
        self._thread.join(limit)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            path, data = item
            self._append(path, data)
            with self._lock:
                self._queued -= len(data)
            if self._queue.empty():
                self._close_files()
        self._close_files()

    def _append(self, path: Path, data: bytes) -> None:
        if path in self._failed:
            return
        try:
            file = self._files.get(path)
            if file is None:
                if len(self._files) >= _MOST_OPEN:
                    self._close_files()
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = self._files[path] = path.open("ab")
            file.write(data)
        except OSError as error:
            self._give_up(path, error.strerror or str(error))

    def _close_files(self) -> None:
        """Close what is open: readers see it, and many ranks over many attempts do not exhaust the descriptors."""
        for path, file in self._files.items():
            try:
                file.close()
            except OSError as error:
                self._give_up(path, error.strerror or str(error))
        self._files.clear()

    def _give_up(self, path: Path, why: str) -> None:
        if path not in self._failed:
            self._failed.add(path)
            self._tell(f"{path} is not written any further: {why}")
