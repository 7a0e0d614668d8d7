"""The output of a job: files in the spool of its first host, filled by the script and, over sockets, by all tasks."""

from __future__ import annotations

import os
import socket
import threading
import time
from io import BufferedIOBase
from pathlib import Path

from records import Record
from wire import HOME, SITE, call

DELIVERED_LATER = 0.2
"""Seconds after the job's end at which its output files appear; it may take real PBS one or two."""


class Output:
    """The output files of one job on its first host."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.paths = {stream: self._path(stream) for stream in "oe"}
        self._readers: list[threading.Thread] = []
        for path in set(self.paths.values()):
            if self.missing:
                return
            if not record["runs"]:  # a job that was run again appends
                path.unlink(missing_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))

    @property
    def missing(self) -> Path | None:
        """The directory of a file that is to be written in place but does not exist; mom cannot start such a job."""
        (HOME / "spool").mkdir(parents=True, exist_ok=True)
        return next((path.parent for path in self.paths.values() if not path.parent.is_dir()), None)

    def _joined(self, stream: str) -> str:
        join = self.record["join"]
        return join[0] if stream in join else stream

    def _path(self, stream: str) -> Path:
        stream = self._joined(stream)
        if stream not in self.record["keep"]:
            return self._spooled(stream)
        if "d" in self.record["keep"]:
            return self.target(stream) if self._is_shared(stream) else self._spooled(stream)
        return Path(SITE["home"], f"{self.record['name']}.{stream}{self.record['number']}")

    def _spooled(self, stream: str) -> Path:
        return HOME / "spool" / f"{self.record['id']}.{'OU' if stream == 'o' else 'ER'}"

    def _is_shared(self, stream: str) -> bool:
        """Whether this host sees the file of the host it was submitted from ($usecp of mom's config)."""
        there, here = self.record["submit_host"], socket.gethostname()
        return there == here or self.target(stream).is_relative_to(SITE["usecp"])

    def refuse_direct_write(self) -> None:
        """Say so where a file is to be written in place and cannot be; it is delivered at the end instead."""
        for stream in dict.fromkeys(map(self._joined, "oe")):
            if "d" in self.record["keep"] and not self._is_shared(stream):
                line = "Direct write is requested for job: {}, but the destination is not usecp-able from {}\n"
                self.write(stream, line.format(self.record["id"], socket.gethostname()))

    def target(self, stream: str) -> Path:
        """Where the user wants the file."""
        return Path(self.record["paths"][stream])

    def open(self, stream: str) -> int:
        """A descriptor that appends to the file of a stream."""
        return os.open(self.paths[stream], os.O_WRONLY | os.O_APPEND)

    def write(self, stream: str, text: str) -> None:
        file = self.open(stream)
        os.write(file, text.encode())
        os.close(file)

    def copy_from(self, source: BufferedIOBase, stream: str) -> None:
        """Append what a task writes, as it comes: bytes of several tasks mix (pbs_demux does the same)."""
        self._readers.append(threading.current_thread())
        file = self.open(stream)
        try:
            while chunk := source.read1(65536):
                os.write(file, chunk)
        except OSError:
            pass
        finally:
            os.close(file)

    def drain(self, limit: float) -> None:
        """Wait until the tasks' sockets are read to their end; a survivor of the job may hold one forever."""
        deadline = time.monotonic() + limit
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def deliver(self) -> None:
        """Bring the files to the host the job was submitted from."""
        for stream in dict.fromkeys(map(self._joined, "oe")):
            spooled = self.paths[stream]
            if spooled.parent != HOME / "spool":
                continue
            name, text = spooled.name, spooled.read_bytes().decode("latin-1")
            try:
                call(self.record["submit_host"], 10, do="deliver", path=str(self.target(stream)), name=name, text=text)
            except OSError:
                keep = HOME / "undelivered"
                keep.mkdir(exist_ok=True)
                spooled.rename(keep / spooled.name)
            else:
                spooled.unlink()


def write_delivered(path: str, name: str, text: str) -> None:
    """Write an output file as PBS leaves it: 0600, and under the name it had in the spool if `path` is a folder."""
    target = Path(path)
    if target.is_dir():
        target /= name
    if not target.parent.is_dir():
        raise OSError(f"{target.parent} is missing")
    target.unlink(missing_ok=True)
    file = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(text.encode("latin-1"))
