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
from collections.abc import Mapping, Sequence
from pathlib import Path

from launching import MUSTER, PLAIN
from waiting import end, patience, wait_until

CTRL_C, CTRL_D = "\x03", "\x04"


def _take_terminal() -> None:
    """Make stdin the controlling terminal of this new session; runs in the child before it starts."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class OnTerminal:
    """A program in the foreground of a terminal; both end with the `with` block."""

    def __init__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str], *, columns: int = 80) -> None:
        self.fd, slave = pty.openpty()
        """The end of the terminal that the user sees."""
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env={**env, "TERM": "xterm"},
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

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)
        os.close(self.fd)

    def _read(self) -> None:
        try:
            while piece := os.read(self.fd, 65536):
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
        os.write(self.fd, keys.encode())

    def wait_for(self, words: str, limit: float = 60) -> None:
        """Until the screen has shown something, given as a pattern."""
        wait_until(words, lambda: re.search(words, self.screen), patience(limit), lambda: self.screen)

    def wait(self, limit: float = 40) -> int:
        """Wait for the command's end, and return its exit code."""
        try:
            code = self.process.wait(patience(limit))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s\n{self.screen}") from None
        self._reader.join(10)
        return code


class Terminal(OnTerminal):
    """A terminal of 100 columns without colors in which `muster run` runs."""

    def __init__(self, folder: Path, *argv: str, shell: bool = False) -> None:
        """`shell`: the arguments are one command line for bash -i, which controls jobs."""
        command = ["bash", "--norc", "-ic", *argv] if shell else [MUSTER, "run", *argv]
        env = {**PLAIN, "XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1", "MUSTER": MUSTER}
        super().__init__(command, folder, env, columns=100)
