"""Learns that this host is about to go away: from SIGTERM, a command of the user, or the metadata service of a cloud.

A child process polls, because a command or a network may hang; one that stays silent is killed and started again.
"""

from __future__ import annotations

import os
import re
import selectors
import time

from ..shared import processes
from ..shared.light_selectors import EVENT_READ, Selector
from ..shared.wire import LineReader, encode
from .cloud_notices import CLOUDS, CloudError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..shared.requests import WatchNotices
    from .local_ranks import LocalRanks

DEFAULT_LEFT = 30.0
"""Seconds left after SIGTERM, and after a command that prints no number."""

EVERY = 2.0
"""Seconds between two polls."""

_IDLE = 20
"""A poll is followed by a pause of at least this many times its duration, so that it uses little CPU."""

_POLL_LIMIT = 10.0
"""Seconds that a poll may take before its process is killed."""

_LONGEST_PAUSE = 60.0
"""Most seconds between two polls."""

_MOST_LEFT = 7 * 86400.0
"""Seconds: a notice further ahead is reported as this."""

_EARLIER = 2.0
"""Seconds by which a deadline must be earlier than the last one to be reported again."""

_MOST_OUTPUT = 4096
"""Bytes that are kept of what a command prints."""

_CANNOT_RUN = (126, 127)
"""Exit codes of a shell that could not start the command."""

_WHAT = "whether the host is about to go away"
"""What is polled for, for error reports."""


class PollError(Exception):
    """A poll that did not work; the text says why."""


class Notices:
    """Reports notices to the controller; `step` is called in every turn of the agent's loop."""

    def __init__(
        self,
        selector: Selector,
        send: Callable[[Mapping[str, object]], None],
        ranks: LocalRanks,
        message: WatchNotices,
    ) -> None:
        self.selector = selector
        self.send = send
        self.ranks = ranks
        self.command = message["command"]
        self.sigterm = message["sigterm"]
        self._terminated = 0
        """How many times SIGTERM came."""
        self._deadline = float("inf")
        self._has_problem = False
        self._pid = 0
        self._read = -1
        self._begin_at = self._silent_at = 0.0
        self._lines = LineReader()

    def on_sigterm(self) -> bool:
        """Take the first SIGTERM as a notice, in a job that can continue without this host; False: end the agent."""
        self._terminated += self.sigterm
        return self._terminated == 1

    def step(self) -> None:
        """Report SIGTERM; start the child that polls, or kill it if it hangs."""
        if self._terminated == 1:
            self._report(DEFAULT_LEFT, "its agent received SIGTERM")
        now = time.monotonic()
        if self._pid and now > self._silent_at:
            self.end()
            self._report_problem(f"`{self.command}` did not end within {_POLL_LIMIT:g} s")
        # The working directory, where a command may be, is known when the host is prepared.
        if self.command and not self._pid and self.ranks.spawner is not None and now >= self._begin_at:
            try:
                self._begin()
            except OSError as error:  # the limit of processes or descriptors is reached
                self._begin_at = now + _LONGEST_PAUSE
                self._report_problem(str(error))

    def end(self) -> None:
        """Kill the child; another one starts later."""
        if self._pid:
            self.selector.unregister(self._read)
            os.close(self._read)
            processes.kill_session(self._pid)
            self._pid = 0
        self._begin_at = time.monotonic() + EVERY

    def _begin(self) -> None:
        read, write = os.pipe()
        try:
            pid = processes.fork(lambda: _work(write, self.command, self.ranks.folders[0]), write)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._pid, self._read, self._lines = pid, read, LineReader()
        self._silent_at = time.monotonic() + _POLL_LIMIT
        self.selector.register(read, EVENT_READ, self._on_lines)

    def _on_lines(self) -> None:
        data = os.read(self._read, 1 << 16)
        if not data:  # it is killed with the ranks whenever they are stopped
            self.end()
            return
        for line in self._lines.feed(data):
            self._silent_at = time.monotonic() + line["pause"] + _POLL_LIMIT
            if line["problem"]:
                self._report_problem(line["problem"])
            elif line["left"] is not None:
                self._report(line["left"], line["why"])

    def _report_problem(self, why: str) -> None:
        """Report a problem, once."""
        if not self._has_problem:
            self._has_problem = True
            self.send({"t": "unseen", "what": _WHAT, "why": why, "traceback": ""})

    def _report(self, left: float, why: str) -> None:
        """Send a notice, unless one with about the same deadline was sent before."""
        left = min(max(left, 0.0), _MOST_LEFT)
        deadline = time.monotonic() + left
        if deadline < self._deadline - _EARLIER:
            self._deadline = deadline
            self.send({"t": "notice", "left": left, "why": why})


# --- in the child -------------------------------------------------------------------------------------------


def _work(write: int, command: str, cwd: str) -> None:
    """Poll forever; write a line after each poll."""
    try:
        os.chdir(cwd)
    except OSError:
        pass  # the job reports that
    cloud = CLOUDS[command]() if command in CLOUDS else None
    failing_since: float | None = None
    while True:
        begin = time.monotonic()
        line: dict[str, Any] = {"left": None, "why": "", "problem": ""}
        try:
            found = cloud.poll() if cloud is not None else run_command(command)
            failing_since = None
            if found is not None:
                line["left"], line["why"] = found
        except (CloudError, PollError, OSError) as error:
            failing_since = begin if failing_since is None else failing_since
            if cloud is None or time.monotonic() - failing_since >= cloud.patience:
                line["problem"] = str(error)
        line["pause"] = min(max(EVERY, (time.monotonic() - begin) * _IDLE), _LONGEST_PAUSE)
        os.write(write, encode(line))
        time.sleep(line["pause"])


def run_command(command: str) -> tuple[float, str] | None:
    """Run a shell command: exit code 0 is a notice, and the first number that it prints is the seconds left."""
    import subprocess

    with subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = _read_both(process)
    if process.returncode in _CANNOT_RUN:
        said = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise PollError(f"`{command}` ended with exit code {process.returncode}: {said[:200]}")
    if process.returncode != 0:
        return None
    number = re.search(rb"\d+(\.\d+)?", out)
    return (float(number[0]) if number else DEFAULT_LEFT), f"according to --notice {command}"


def _read_both(process: Any) -> tuple[bytes, bytes]:
    """The beginning of both streams of a command; the rest is read and dropped, so that it does not block."""
    kept = {process.stdout: b"", process.stderr: b""}
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                kept[key.fileobj] = (kept[key.fileobj] + data)[:_MOST_OUTPUT]
    return kept[process.stdout], kept[process.stderr]
