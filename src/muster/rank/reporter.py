"""Sends a rank's reports to its agent: uncaught exceptions with their traceback, and the progress of collectives."""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock

from ..shared.user_code import is_users
from ..shared.wire import encode
from . import kept_errors
from .failure_text import place_of, summary_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

    from .lone_steps import LoneSteps
    from .sampler import Sampler

_LAST_CALLS = 3
"""Number of collectives per group that are reported with an exception, to detect mismatches between ranks."""

_LONGEST = 32_000
"""Maximum number of characters of a traceback that are sent, from the end, where the cause is."""


class Reporter:
    """Sends messages over the rank's report descriptor; does nothing in children that the script forks."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self.fd = fd
        self.pid = os.getpid()
        self.socket = _identity(fd)
        self.reported = 0
        """The last reported number of collectives."""
        self.sampler: Sampler | None = None
        self._alone: LoneSteps | None = None
        self._is_unwatched = False
        self._lock = allocate_lock()
        """Held while a message is written: the sampling thread writes too, and long messages are written in parts."""

    @property
    def is_whole(self) -> bool:
        """False in a child process, and if the script has closed the descriptor and reused its number."""
        return os.getpid() == self.pid and _identity(self.fd) == self.socket

    def send(self, message: Mapping[str, object]) -> None:
        """Send one message with the current time; errors are ignored if the agent is gone."""
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
        """Report an uncaught exception, where it was raised, and how many collectives had been called."""
        from traceback import format_exception

        from . import torch_adapter
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
        """Report how a rank exits without an error: at the `end` of its script, or by sys.exit (`exit`)."""
        alone = self._alone.count() if self._alone is not None else 0
        groups: dict[str, tuple[int, int]] = {}
        if "torch" in sys.modules:
            from . import torch_adapter  # here, because a rank without torch does without it

            groups = torch_adapter.group_numbers()
        self.send({"t": "left", "how": how, "place": place, "groups": groups, **({"alone": alone} if alone else {})})

    def problem(self, sentence: str, hint: str) -> None:
        """Report a failure with a message and hint of Muster's own."""
        from . import torch_adapter

        done = torch_adapter.collectives_begun()
        self.send({"t": "exception", "summary": sentence, "message": sentence, "hint": hint, "done": done})

    def watch_groups(self) -> None:
        """Install hooks that start the sampling thread when the script creates a process group."""
        if "torch" in sys.modules:
            self._install_hooks()
        else:
            sys.meta_path.insert(0, _BeforeTorch(lambda: self.guard(self._before_torch)))  # type: ignore[arg-type]
        if "MUSTER_MLFLOW_RUN" in os.environ:
            from . import mlflow_run

            self.guard(mlflow_run.install)

    def _before_torch(self) -> None:
        self.send({"t": "imports_torch"})
        self._install_hooks()

    def _install_hooks(self) -> None:
        from .torch_groups import Hooks

        hooks = Hooks(lambda: self.guard(self._joining), lambda: self.guard(self._start_sampling))
        self.guard(hooks.install)
        if os.environ.get("WORLD_SIZE", "1") != "1":
            from .lone_steps import LoneSteps

            self._alone = LoneSteps(hooks)
            self.guard(self._alone.install)

    def guard(self, hook: Callable[[], None]) -> None:
        """Run monitoring code: an error in it disables monitoring and is reported, but never reaches the script."""
        try:
            hook()
        except Exception as error:
            if not sys.is_finalizing():  # errors are expected while the interpreter shuts down
                self.unwatched(summary_of(error, str(error)), kept_errors.traceback_of(error))

    def unwatched(self, why: str, traceback: str = "") -> None:
        """Report once why this rank cannot be monitored."""
        if not self._is_unwatched:
            self._is_unwatched = True
            self.send({"t": "unwatched", "why": why, "traceback": traceback})

    def _joining(self) -> None:
        """The script starts to create its process group, which takes until all ranks do so."""
        if self._alone is not None:
            self._alone.end()
        if self.sampler is None:
            self.progress(0, joining=True)
            # Start the thread now. Without it, finding out where the rank is would take a signal, which torch's store
            # treats as a failure while it sleeps between two attempts to connect.
            self._start_sampling()

    def _start_sampling(self) -> None:
        if os.getpid() != self.pid or self.sampler is not None:
            return
        from .sampler import Sampler

        # Started this late, when gloo and NCCL create threads as well, so that a script that forks before it has a
        # process group is as single-threaded as under plain python.
        self.sampler = Sampler(self)
        self.sampler.start()

    def last_look(self) -> None:
        """Report the final progress of a script, which may have ended between two samples."""
        if "torch" not in sys.modules:
            return
        from . import torch_adapter

        done = torch_adapter.collectives_begun()
        if done > self.reported:
            more = {"groups": torch_adapter.group_numbers(), "steps": self.sampler.steps[1]} if self.sampler else {}
            self.progress(done, **more)

    def progress(self, done: int, **more: Any) -> None:
        """Report the number of finished collectives and other progress; the user sees the time of the first one."""
        for message in kept_errors.take():
            self.send(message)
        known, done = self.reported, max(self.reported, done)
        self.send({"t": "progress", "done": done, "first": done > known == 0, **more})
        # Only now: the interpreter may end while the sampling thread is about to send, and then `last_look` must. That
        # the first one may be reported twice, with about the same time, harms nothing.
        self.reported = max(self.reported, done)


class _BeforeTorch:
    """Calls a function when the script looks for torch, before it is loaded; the other finders find it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then: Callable[[], None] | None = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Call the function, once: the script may have wrapped this finder, or two threads may ask at the same time."""
        if name == "torch" and self._then is not None:
            then, self._then = self._then, None
            # A new list, because a loop over the old one, here or in another thread, would skip the next finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            then()


def is_watched() -> bool:
    """Whether hooks, a thread and a signal handler may be installed in this rank; MUSTER_WATCH=0 disables them."""
    return os.environ.get("MUSTER_WATCH") != "0"


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    except OSError:
        return None
