"""Messages to the user when a job ends or hangs (--notify): by a command, on the desktop, or to a webhook."""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from muster.controller.debug_log import internal_error
from muster.errors import UsageError
from muster.text import age, cut, printable

if TYPE_CHECKING:
    from muster.controller.monitor.job_status import JobStatus

LIMIT = 10.0
"""Seconds that one notification may take."""

_DESKTOP = "desktop"
_LOOK = 0.05
"""Seconds between two looks at notifications that are under way when the job has ended."""

_LONGEST = 2000
"""Characters of a message; Slack takes 40,000, ntfy 4,096 bytes."""

_ON_MAC = (
    "on run argv",
    "display notification (item 2 of argv) with title (item 1 of argv)",
    "end run",
)
"""AppleScript that takes title and text as arguments, so that nothing in them is code."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What has happened to a job."""

    job: str
    event: Literal["end", "hang"]
    message: str
    """One line about it, for people."""
    exit_code: int | None = None
    """How the job ended; None if it has not."""
    host: str = ""
    """The machine on which the command runs."""

    @property
    def variables(self) -> dict[str, str]:
        """The notice as environment variables of a command."""
        return {
            "MUSTER_JOB": self.job,
            "MUSTER_EVENT": self.event,
            "MUSTER_EXIT_CODE": "" if self.exit_code is None else str(self.exit_code),
            "MUSTER_MESSAGE": self.message,
        }

    @property
    def body(self) -> dict[str, object]:
        """The notice as the JSON of a webhook; `text` is the field that Slack and Mattermost show."""
        return {
            "job": self.job,
            "event": self.event,
            "exit_code": self.exit_code,
            "message": self.message,
            "host": self.host,
            "text": f"{self.message} ({self.job} on {self.host})",
        }


def check_ways(ways: Iterable[str]) -> None:
    """Raise UsageError for a value of --notify that can never work."""
    for way in ways:
        scheme = re.match(r"(\w+):/", way)
        if not way.strip():
            raise UsageError("--notify needs a command, desktop or a URL", hint="for example `--notify desktop`")
        if scheme and not _is_url(way):
            raise UsageError(
                f"--notify {shown(way)}: not a URL that Muster can post to",
                hint="a webhook begins with https:// or http://",
            )
        if re.fullmatch(r"[\w-]+", way) and way != _DESKTOP and shutil.which(way) is None:
            raise UsageError(
                f"--notify {way}: there is no such command", hint="type a shell command, `desktop` or a URL"
            )


def _is_url(way: str) -> bool:
    return re.fullmatch(r"https?://[^/\s]\S*", way) is not None


class Notifier:
    """Sends the notices of one job, each in a thread of its own; a failure is one warning and nothing else."""

    def __init__(self, status: JobStatus, ways: tuple[str, ...], warn: Callable[[str], None]) -> None:
        self._status = status
        self._ways = ways
        self._warn = warn
        self._reports = 0
        """How many reports of the job have been looked at."""
        self._threads: list[tuple[threading.Thread, str]] = []
        """With the way that each one uses."""
        if _DESKTOP in ways and _desktop_program() is None:
            warn("--notify desktop: this machine has no notify-send, so no notification will be shown")

    def tick(self) -> None:
        """Send a notice about each hang that was found since the last call."""
        reports = self._status.reports
        for report in reports[self._reports :]:
            if report.kind == "hang":
                self._send("hang", f"{self._status.job.spec.command} hangs: {report.sentence}")
        self._reports = len(reports)

    async def end(self) -> None:
        """Send a notice that the job has ended, and wait until all notices have been sent or the time is over."""
        status = self._status
        if not self._ways or status.exit_code is None:
            return
        self.tick()
        took = f"after {age(time.time() - status.begin)}"
        failed = f"failed {took} with exit code {status.exit_code}: {status.sentence}"
        how = status.sentence if status.stopped_by else failed if status.exit_code else f"done {took}"
        self._send("end", f"{status.job.spec.command}: {how}", status.exit_code)
        give_up = time.monotonic() + LIMIT + 1
        while any(thread.is_alive() for thread, _ in self._threads) and time.monotonic() < give_up:
            await asyncio.sleep(_LOOK)
        for thread, way in self._threads:
            if thread.is_alive():
                self._warn(f"--notify {shown(way)}: not sent within {LIMIT:g} s")

    def _send(self, event: Literal["end", "hang"], message: str, exit_code: int | None = None) -> None:
        notice = Notice(
            job=self._status.job.id,
            event=event,
            message=cut(printable(message), _LONGEST),
            exit_code=exit_code,
            host=socket.gethostname(),
        )
        for way in self._ways:
            thread = threading.Thread(target=self._deliver, args=(way, notice), name="muster-notify", daemon=True)
            thread.start()
            self._threads.append((thread, way))

    def _deliver(self, way: str, notice: Notice) -> None:
        try:
            problem = deliver(way, notice)
        except Exception as error:
            problem = internal_error(error)
        if problem:
            self._warn(f"--notify {shown(way)}: {problem}")


def shown(way: str) -> str:
    """A value of --notify for the screen: the path of a webhook's URL is a secret."""
    found = re.match(r"(https?://)(?:[^/]*@)?([^/?#]+)", way)
    return f"{found[1]}{found[2]}/…" if found else cut(way, 60)


def deliver(way: str, notice: Notice, limit: float = LIMIT) -> str:
    """Send one notice, within `limit` seconds; returns why it failed, or nothing."""
    if _is_url(way):
        return _post(way, notice, limit)
    if way == _DESKTOP:
        program = _desktop_program()
        if program is None:
            return ""  # said at the start of the job
        return _run([*program, f"Muster: {notice.job}", notice.message], notice, limit)
    return _run(["/bin/sh", "-c", way], notice, limit)


def _desktop_program() -> list[str] | None:
    """What shows a title and a text on the desktop, as its last two arguments; None where there is nothing."""
    if sys.platform == "darwin":
        return ["osascript", *(word for line in _ON_MAC for word in ("-e", line))]
    return ["notify-send", "--app-name=muster", "--"] if shutil.which("notify-send") else None


def _run(argv: list[str], notice: Notice, limit: float) -> str:
    """Run a command in a process group of its own, which does not outlive its time."""
    deadline = time.monotonic() + limit
    try:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **notice.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return f"could not be started ({error.strerror})"
    pipe = cast("IO[bytes]", process.stderr)
    try:
        said = _last_bytes(pipe, deadline)
        process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"stopped after {limit:g} s"
    finally:
        pipe.close()
    if process.returncode == 0:
        return ""
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    return ": ".join([f"exit code {process.returncode}", *(printable(line) for line in last)])


def _last_bytes(pipe: IO[bytes], deadline: float) -> bytes:
    """The last bytes before the end of a pipe; TimeoutError if that does not come in time."""
    last = b""
    ready = select.poll()  # not select: in a large job a descriptor may be over 1023
    ready.register(pipe, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0 and ready.poll(left * 1000):
        piece = os.read(pipe.fileno(), 1 << 16)
        if not piece:
            return last
        last = (last + piece)[-_LONGEST:]
    raise TimeoutError


def _post(url: str, notice: Notice, limit: float) -> str:
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirect(HTTPRedirectHandler):
        """Makes a redirection an error: urllib would follow it with a GET, without the notice."""

        def redirect_request(self, *args: Any, **settings: Any) -> None:
            """Follow none."""

    headers = {
        "Content-Type": "application/json",
        "User-Agent": "muster",
        # ntfy shows the whole body unless it is given a template for it; others ignore these.
        "X-Template": "yes",
        "X-Title": "Muster",
        "X-Message": "{{.text}}",
    }
    try:
        request = Request(url, json.dumps(notice.body).encode(), headers)
        with build_opener(NoRedirect).open(request, timeout=limit) as reply:
            reply.read(1)
    except HTTPError as error:
        return f"the server answered {error.code} {printable(error.reason)}"
    except TimeoutError:
        return f"no answer within {limit:g} s"
    except (OSError, ValueError, HTTPException) as error:
        return printable(str(getattr(error, "reason", error)))
    return ""
