"""What a rank tells its agent: an uncaught exception with its traceback, and how far the collectives have come."""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock

from ..shared.user_code import is_users
from ..shared.wire import encode
from . import kept_errors, torch_adapter
from .failure_text import place_of, summary_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

    from .sampler import Sampler

_LAST_CALLS = 3
"""Collectives of each group that are told with an exception: they may differ from those of other ranks."""

_LONGEST = 32_000
"""Characters of a traceback that are kept: the end, where the cause is."""


class Reporter:
    """Sends messages over the rank's report descriptor; silent in children the script forks."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self.fd = fd
        self.pid = os.getpid()
        self.socket = _identity(fd)
        self.told = 0
        """The number of collectives last told."""
        self.sampler: Sampler | None = None
        self._is_unwatched = False
        self._lock = allocate_lock()
        """Held while one message is written: the sampling thread speaks too, and a long message is written in parts."""

    @property
    def is_whole(self) -> bool:
        """False in a child, and in a script that closed all descriptors and has its own file behind this number."""
        return os.getpid() == self.pid and _identity(self.fd) == self.socket

    def send(self, message: Mapping[str, object]) -> None:
        """Send one message with the time of now; a lost agent is no reason to fail."""
        if not self.is_whole:
            return
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

        from .post_mortem import paths_of

        text = "".join(format_exception(type(error), error, traceback))
        message = text_of(error)
        self.send(
            {
                "t": "exception",
                "summary": summary_of(error, message)[:500],
                "message": message[:4000],
                "traceback": text[-_LONGEST:],
                "place": place_of(traceback),
                "done": torch_adapter.collectives_begun(),
                "groups": torch_adapter.group_numbers(),
                "calls": torch_adapter.recorder_tail(_LAST_CALLS, is_users),
                "paths": paths_of(error, traceback),
            }
        )

    def left(self, how: str, place: str = "") -> None:
        """Tell how a rank leaves that has no error: by the `end` of its script, or by sys.exit (`exit`)."""
        self.send({"t": "left", "how": how, "place": place, "groups": torch_adapter.group_numbers()})

    def problem(self, sentence: str, hint: str) -> None:
        """Tell in words of our own why the rank fails."""
        done = torch_adapter.collectives_begun()
        self.send({"t": "exception", "summary": sentence, "message": sentence, "hint": hint, "done": done})

    def watch_groups(self) -> None:
        """Be there when the script creates a process group, and then sample its progress from a thread."""
        from .torch_groups import Hooks

        hooks = Hooks(lambda: self.guard(self._joining), lambda: self.guard(self._start_sampling))
        self.guard(hooks.install)

    def guard(self, hook: Callable[[], None]) -> None:
        """Run what is only for watching: an error in it costs the watch and is told, and never reaches the script."""
        try:
            hook()
        except Exception as error:
            if not sys.is_finalizing():  # what a thread finds then is half gone
                self.unwatched(summary_of(error, str(error)), kept_errors.traceback_of(error))

    def unwatched(self, why: str, traceback: str = "") -> None:
        """Tell why this rank cannot be watched, the first time."""
        if not self._is_unwatched:
            self._is_unwatched = True
            self.send({"t": "unwatched", "why": why, "traceback": traceback})

    def _joining(self) -> None:
        """The script begins to create its process group, which takes until all ranks do so."""
        if self.sampler is None:
            self.progress(0, joining=True)
            # From here on it can be asked. Without a thread to ask it takes a signal to learn where it is, and torch's
            # store, which sleeps between two tries to connect, would take that for a failure.
            self._start_sampling()

    def _start_sampling(self) -> None:
        if os.getpid() != self.pid or self.sampler is not None:
            return
        from .sampler import Sampler

        # Started this late because gloo and NCCL make threads of their own now: a script that forks before it
        # has a process group is as single-threaded as under plain python.
        self.sampler = Sampler(self)
        self.sampler.start()

    def last_look(self) -> None:
        """Tell how far a script has come that may have ended between two samples."""
        done = torch_adapter.collectives_begun()
        if done > self.told:
            more = {"groups": torch_adapter.group_numbers(), "steps": self.sampler.steps[1]} if self.sampler else {}
            self.progress(done, **more)

    def progress(self, done: int, **more: Any) -> None:
        """Tell how many collectives are over, and what else is known; the first one's time matters to the user."""
        for message in kept_errors.take():
            self.send(message)
        told, self.told = self.told, max(self.told, done)
        self.send({"t": "progress", "done": self.told, "first": self.told > told == 0, **more})


def is_watched() -> bool:
    """Whether hooks, a thread and a signal handler may be installed in this rank; MUSTER_WATCH=0 leaves them out."""
    return os.environ.get("MUSTER_WATCH") != "0"


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    except OSError:
        return None
