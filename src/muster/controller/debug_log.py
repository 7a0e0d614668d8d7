"""The debug log of a job for bug reports: what Muster did and when, and a traceback for each internal error.

Modules use the standard `logging` below the logger `muster`; this module writes the records to the file.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb, format_exception
from typing import Any

from muster.engines.engine import Launch
from muster.environment import SECRET_NAME
from muster.errors import MusterError
from muster.home import state_folder
from muster.job import Job
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.text import tilde

FILE = "debug.log"
"""The debug log in the job directory; in the state directory, errors outside any job."""

LARGEST = 5 << 20
"""Bytes after which the file is rotated to debug.log.1, replacing an older one."""

_QUIET = frozenset({"out", "progress", "arrivals", "gauges", "piece"})
"""Events that are not logged: output and results of ranks, and periodic events."""

_FIELDS = ("rank", "state", "status", "number", "pid", "how", "place", "what", "why", "limit", "names")
"""Fields of an event that are logged with its name."""

_OURS = frozenset({"log", "unseen", "unwatched"})
"""Events whose traceback is from Muster, not from the user's code."""

_ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]+)=(\"[^\"]*\"|'[^']*'|\S+)")
_HIDDEN = "***"

_root = logging.getLogger("muster")
_root.addHandler(logging.NullHandler())
_log = logging.getLogger("muster.debug_log")
_agent = logging.getLogger("muster.agent")
_screen = logging.getLogger("muster.screen")
_attachments: list[logging.Handler] = []
_before: dict[str, int] = {}
"""The previous settings of the logger."""
_open: dict[int, DebugLog] = {}
"""The logs of the jobs in this process, by the thread of their event loop."""


class DebugLog(logging.Handler):
    """Formats the records of one job and queues them for the thread that writes its files."""

    def __init__(self, job: Job, folder: Path, logs: LogFiles, show: Callable[[str], None] | None) -> None:
        super().__init__()
        self.path = folder / FILE
        self.setFormatter(_formatter())
        self._logs = logs
        self._show = show
        self._written = 0
        self._secrets = sorted(_secrets({**os.environ, **job.carried, **job.spec.env}), key=len, reverse=True)
        logs.rotate(self.path)

    def filter(self, record: logging.LogRecord) -> bool:
        """Skip records of another job in this process."""
        return _open.get(record.thread or 0, self) is self

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record without waiting for a disk or a terminal."""
        text = self.format(record)
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        self._written += len(text) + 1
        if self._written > LARGEST:
            self._written = len(text)
            self._logs.rotate(self.path)
            self._logs.write(self.path, f"older lines are in {FILE}.1\n")
        self._logs.write(self.path, text + "\n")
        if self._show is not None and record.name != _screen.name:
            self._show(text)


@contextmanager
def logged(job: Job, launch: Launch, folder: Path, logs: LogFiles, screen: Screen) -> Generator[None]:
    """Write the debug log of the job in this thread; an internal error ends the job as a MusterError."""
    handler = DebugLog(job, folder, logs, screen.debug if job.spec.debug else None)
    thread = threading.get_ident()
    _open[thread] = handler
    screen.log = lambda text: _screen.info("%s", text)
    try:
        with _attached(handler):
            hosts = ", ".join(f"{agent.name}:{agent.host.slots or 'auto'}" for agent in launch.agents)
            _log.info("%s; job %s, %s %s", _versions(), job.id, job.spec.kind, job.spec.target)
            _log.info("engine %s on %s; zygote imports %s", launch.name, hosts, ", ".join(job.preload) or "nothing")
            try:
                yield
            except (MusterError, FileNotFoundError, PermissionError) as error:  # an error of the user or of a host
                _log.info("the job failed: %s", error, exc_info=error)
                raise
            except Exception as error:
                raise MusterError(internal_error(error)) from error
    finally:
        del _open[thread]


@contextmanager
def shown(debug: bool) -> Generator[None]:
    """With `debug`, print the debug log to stderr, for commands without a job."""
    if not debug:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter("muster: debug: "))
    handler.addFilter(lambda record: record.name != _screen.name)
    with _attached(handler):
        yield


@contextmanager
def _attached(handler: logging.Handler) -> Generator[None]:
    """Send all records of Muster to a handler, and hide them from the program that calls muster.launch()."""
    if not _attachments:
        _before.update(level=_root.level, propagate=_root.propagate)
    _root.addHandler(handler)
    _attachments.append(handler)
    _root.setLevel(logging.DEBUG)
    _root.propagate = False
    try:
        yield
    finally:
        _root.removeHandler(handler)
        _attachments.remove(handler)
        if not _attachments:
            _root.setLevel(_before["level"])
            _root.propagate = bool(_before["propagate"])


def internal_error(error: BaseException | str, traceback: str = "") -> str:
    """Log an internal error with its traceback, and return the message for the user."""
    if isinstance(error, str):
        what = error
    else:
        frames = extract_tb(error.__traceback__)
        where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
        what = f"{type(error).__name__}: {error}{where}"
        traceback = "".join(format_exception(error))
    text = f"internal error: {what}\n{traceback}".rstrip()
    handler = _open.get(threading.get_ident()) or next(iter(_open.values()), None)
    path = handler.path if handler is not None else state_folder() / FILE
    if handler is not None:
        _log.error("%s", text)
    elif not _append(path, text):
        return f"internal error in Muster: {what}; please report it with this traceback:\n{traceback.rstrip()}"
    return f"internal error in Muster: {what}; please report it with {tilde(path)}"


@contextmanager
def guarded(on_error: Callable[[Exception], None]) -> Generator[None]:
    """Run code that only observes a job: `on_error` reports an error in it, and the job continues."""
    try:
        yield
    except Exception as error:
        on_error(error)


def log_event(host: str, event: Mapping[str, Any], our_time: float | None) -> None:
    """Log an event of an agent; `our_time` is its time on our clock, if the event has one."""
    kind = event["t"]
    if kind in _QUIET or not _root.isEnabledFor(logging.DEBUG):
        return
    if kind == "log":
        text, level = f"rank {event['rank']}: {event['text']}" if "rank" in event else event["text"], logging.DEBUG
    else:
        fields = " ".join(f"{name}={event[name]}" for name in _FIELDS if event.get(name) not in (None, ""))
        text, level = f"{kind} {fields}".rstrip(), logging.DEBUG
    if kind in _OURS and event.get("traceback"):
        text, level = f"{text}\n{event['traceback']}".rstrip(), logging.ERROR
    record = _agent.makeRecord(_agent.name, level, __file__, 0, "%s: %s", (host, text), None)
    if our_time is not None:
        record.created, record.msecs = our_time, our_time % 1 * 1000
    _agent.handle(record)


def command_line(argv: Sequence[str]) -> str:
    """A command line for the log, shortened and without the values of variables."""
    line = _ASSIGNED.sub(rf"\1={_HIDDEN}", " ".join(argv))
    return line if len(line) < 1000 else f"{line[:1000]}…"


def _secrets(env: Mapping[str, str]) -> set[str]:
    """Values that must not appear in a log: those of variables named like a secret."""
    return {value for name, value in env.items() if SECRET_NAME.search(name) and len(value) >= 8}


def _formatter(prefix: str = "") -> logging.Formatter:
    text = f"{prefix}%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
    return logging.Formatter(text, datefmt="%Y-%m-%d %H:%M:%S")


def _versions() -> str:
    from muster import __version__

    python = ".".join(map(str, sys.version_info[:3]))
    return f"muster {__version__}, Python {python} on {sys.platform}, pid {os.getpid()}, zone {time.strftime('%z')}"


def _append(path: Path, text: str) -> bool:
    """Append text to a file that only this user can read; False if that failed."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST:
            path.replace(path.with_name(f"{FILE}.1"))
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", errors="replace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {_versions()}\n{text}\n")
    except OSError:
        return False
    return True
