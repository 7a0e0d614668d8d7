"""What a rank tells its agent: an uncaught exception with its traceback, and how far the collectives have come."""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock

from . import torch_adapter
from .wire import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_LONGEST = 32_000
"""Characters of a traceback that are kept: the end, where the cause is."""


class Reporter:
    """Sends messages over the rank's report descriptor; silent in children the script forks."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self.fd = fd
        self.pid = os.getpid()
        self.pipe = _identity(fd)
        self.told = 0
        """The number of collectives last told."""
        self._lock = allocate_lock()
        """Held while one message is written: the sampling thread speaks too, and a long message is written in parts."""

    def send(self, message: dict[str, Any]) -> None:
        """Send one message with the time of now; a lost agent is no reason to fail."""
        if os.getpid() != self.pid or _identity(self.fd) != self.pipe:
            return  # a child, or a script that closed all descriptors and has its own file behind this number
        line = encode({**message, "time": time.time()})
        try:
            with self._lock:
                while line:
                    line = line[os.write(self.fd, line) :]
        except OSError:
            pass

    def exception(self, error: BaseException, traceback: TracebackType | None) -> None:
        """Tell of an uncaught exception, where it was raised, and how many collectives were done by then."""
        from traceback import format_exception

        text = "".join(format_exception(type(error), error, traceback))
        message = str(error)
        self.send(
            {
                "t": "exception",
                "summary": summary_of(error, message)[:500],
                "message": message[:4000],
                "traceback": text[-_LONGEST:],
                "place": place_of(traceback),
                "done": torch_adapter.collectives_begun(),
            }
        )

    def problem(self, sentence: str, hint: str) -> None:
        """Tell in words of our own why the rank fails."""
        done = torch_adapter.collectives_begun()
        self.send({"t": "exception", "summary": sentence, "message": sentence, "hint": hint, "done": done})

    def watch_progress(self) -> None:
        """Once the script has a process group, sample its progress from a thread."""
        torch_adapter.after_init_process_group(self._start_sampling)

    def _start_sampling(self) -> None:
        if os.getpid() != self.pid:
            return
        from threading import Thread

        # Started this late because gloo and NCCL have threads of their own by now: a script that forks before it
        # has a process group is as single-threaded as under plain python.
        Thread(target=self._sample, name="muster-progress", daemon=True).start()

    def _sample(self) -> None:
        while not sys.is_finalizing():
            # 20 ms until the first collective, whose time is shown to the user; then once a second.
            time.sleep(0.02 if self.told == 0 else 1.0)
            self._tell_progress(torch_adapter.collectives_done())

    def last_look(self) -> None:
        """Tell how far a script has come that may have ended between two samples."""
        self._tell_progress(torch_adapter.collectives_begun())

    def _tell_progress(self, done: int) -> None:
        told, self.told = self.told, max(self.told, done)
        if done > told:
            self.send({"t": "progress", "done": done, "first": told == 0})


def summary_of(error: BaseException, message: str) -> str:
    """Type and first line of an exception: errors of CUDA and NCCL go on with lines of general advice."""
    name = type_name(error)
    first = message.strip().partition("\n")[0]
    return f"{name}: {first}" if first else name


def type_name(value: object) -> str:
    """The type of something, as an uncaught exception shows it."""
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    except OSError:
        return None


def place_of(traceback: TracebackType | None) -> str:
    """`file.py:12` of the innermost frame that is the user's, not a package's or the standard library's."""
    from traceback import extract_tb

    frames = extract_tb(traceback)
    if not frames:
        return ""
    library = os.path.dirname(os.__file__) + os.sep
    foreign = ("<", library)
    own = [f for f in frames if not f.filename.startswith(foreign) and "site-packages" not in f.filename]
    frame = (own or frames)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"
