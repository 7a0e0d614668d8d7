"""The terminal of a command that another machine has forwarded: its output looks as it would there."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
import threading
import tty


class RemoteTerminal:
    """A terminal of its own for this process; what is written to it goes to the stdout that it had before.

    Nothing in between changes a byte: the terminal on the other machine does.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self._master, slave = os.openpty()
        tty.setraw(slave)
        self.resize(columns, lines)
        self._pipe = os.dup(1)
        os.dup2(slave, 1)
        os.dup2(slave, 2)
        os.close(slave)
        self._thread = threading.Thread(target=self._copy, name="terminal", daemon=True)
        self._thread.start()

    def resize(self, columns: int, lines: int) -> None:
        """The terminal on the other machine has this size now."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def close(self) -> None:
        """Send what is left, so that this process may end."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass  # the other machine has gone
        for descriptor in (1, 2):
            os.dup2(self._pipe, descriptor)  # the last descriptor of the terminal: the thread sees its end
        self._thread.join(10.0)

    def _copy(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                while data:
                    data = data[os.write(self._pipe, data) :]
        except OSError:
            pass  # EIO: all has been written; EPIPE: the other machine has gone
