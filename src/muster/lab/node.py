"""A process that lives exactly as long as its owner wants, and never longer than the owner."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from muster.errors import LabError


class Node:
    """A child that reads a pipe of ours and ends when it closes, whether we exit cleanly or by SIGKILL.

    The child reports its progress as lines on its stdout (`expect`) and continues on request (`go`).
    """

    def __init__(self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None, errors: Path | None) -> None:
        self.name = name
        self._errors = errors
        self._unread = b""
        # A file, not a pipe: unshare 2.38 prints an error when init is killed, and no one reads the pipe by then.
        sink = errors.open("wb") if errors else None
        try:
            self._process = subprocess.Popen(
                argv,
                env=None if env is None else dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink if sink else subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C goes to the owner, which then stops the lab in order
                bufsize=0,
            )
        finally:
            if sink:
                sink.close()

        self.init = self.pid
        """The process whose end ends the host, with its pid outside the host."""

    @property
    def pid(self) -> int:
        """The pid of the child itself."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child is running."""
        return self._process.poll() is None

    def expect(self, word: str, deadline: float) -> list[str]:
        """Wait until the child prints a line that starts with `word`; return the rest of that line."""
        line = self._read_line(word, deadline)
        said = line.split()
        if not said or said[0] != word:
            raise self._failure(f"printed {line!r}, expected `{word}`")
        return said[1:]

    def _read_line(self, word: str, deadline: float) -> str:
        stdout = _pipe(self._process.stdout)
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise self._failure(f"timed out before step `{word}`")
            chunk = os.read(stdout.fileno(), 4096)
            if not chunk:
                self._process.wait()
                raise self._failure(f"exited before step `{word}`")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def _failure(self, what: str) -> LabError:
        reason = self._errors.read_text(errors="replace").strip() if self._errors else ""
        return LabError(f"{self.name} {what}" + (f": {reason}" if reason else ""))

    def go(self) -> None:
        """Let the child continue with its next step."""
        try:
            _pipe(self._process.stdin).write(b"go\n")
        except BrokenPipeError:
            pass  # it has ended; the next `expect` reports why

    def terminate(self) -> None:
        """Close the pipe, which ends the child, without waiting for it."""
        _pipe(self._process.stdin).close()

    def end(self, *, limit: float = 10.0) -> None:
        """Close the pipe and wait until the child ends; kill it after `limit` seconds."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "every node is started with both pipes"
    return stream
