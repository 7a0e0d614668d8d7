"""A terminal with a command in its foreground, as a user has one: what is typed, Ctrl-C, and what the screen shows."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from pathlib import Path

from launching import MUSTER, PLAIN
from waiting import end, wait_until

CTRL_C, CTRL_D = "\x03", "\x04"


def _take_terminal() -> None:
    """Make stdin the controlling terminal of this new session; runs in the child before it starts."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A terminal of 100 columns in which `muster run` runs; it is closed with the `with` block."""

    def __init__(self, folder: Path, *argv: str, shell: bool = False) -> None:
        """`shell`: the arguments are one command line for bash -i, which controls jobs."""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        self.process = subprocess.Popen(
            ["bash", "--norc", "-ic", *argv] if shell else [MUSTER, "run", *argv],
            cwd=folder,
            env={**PLAIN, "XDG_STATE_HOME": str(folder / "state"), "TERM": "xterm", "NO_COLOR": "1", "MUSTER": MUSTER},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._data = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)
        os.close(self._master)

    def _read(self) -> None:
        try:
            while piece := os.read(self._master, 65536):
                self._data += piece
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EBADF):  # nobody has the other end, or we have closed ours
                raise

    @property
    def screen(self) -> str:
        """All that was shown so far."""
        return self._data.decode("utf-8", "replace").replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        """Press keys; Enter is a newline."""
        os.write(self._master, keys.encode())

    def wait_for(self, words: str, limit: float = 60) -> None:
        """Until the screen has shown something, given as a pattern."""
        wait_until(words, lambda: re.search(words, self.screen), limit, lambda: self.screen)

    def wait(self, limit: float) -> int:
        """Wait for the command's end, and return its exit code."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s\n{self.screen}") from None
        self._reader.join(10)
        return code
