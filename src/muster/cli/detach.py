"""`muster run --detach`: the same command in the background, where it survives a logout or a closed terminal."""

from __future__ import annotations

import getpass
import os
import re
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from muster.job import job_folder, make_job_folder
from muster.jobs.location import SCREEN
from muster.output.escapes import TerminalStream

_LOOK = 0.1
"""Seconds between two checks for output of the job."""

_STARTED = b"started\n"

_FIRST_USER = 1000
"""The lowest number of a user whose shared memory systemd removes; those below are of the system."""


class Background:
    """The job's end of the pipe to the command that started it."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def settle(self, job_id: str, warning: str = "") -> None:
        """From here on the job's screen is a file in its directory, which begins with `warning`."""
        path = make_job_folder(job_id) / SCREEN
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        if warning:
            sys.stderr.write(f"muster: {warning}\n")
            sys.stderr.flush()
        self._send(f"{job_id}\n".encode())

    def started(self) -> None:
        """All ranks have been started, so the command may return."""
        self._send(_STARTED)

    def _send(self, data: bytes) -> None:
        try:
            os.write(self._pipe, data)
        except OSError:
            pass  # the command has gone: its terminal was closed


def detached(
    run: Callable[[Background], int], announce: Callable[[str], None] | None = None, orders: int | None = None
) -> int:
    """Run a job in a process of its own, and return when its ranks have started, or with its exit code if they do not.

    It forks before anything of the job is there, so that all of it, the hosts of --lab too, belongs to the new process.
    `announce` gets the id of a job that has started. Bytes from the descriptor `orders` stop one that has not.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    source, sink = os.pipe()
    # For output from before the job directory exists; not our own stderr, which a child would keep open.
    with tempfile.TemporaryFile() as early:
        child = os.fork()
        if child:
            os.close(sink)
            return _in_front(child, source, early, announce or _print_how_to_follow, orders)
        os.close(source)
        os.setsid()  # no terminal, and none of the signals that one sends
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(early.fileno(), 1)
        os.dup2(early.fileno(), 2)
    return run(Background(sink))


class _Output:
    """The output of the job so far, copied to our stderr."""

    def __init__(self, early: BinaryIO) -> None:
        self._file = early.fileno()
        self._at = 0
        self._filter = TerminalStream() if sys.stderr.isatty() else None

    def then(self, path: Path) -> None:
        """From here on its output is in another file."""
        self.pass_on()
        self._file, self._at = os.open(path, os.O_RDONLY), 0

    def pass_on(self) -> None:
        """Copy what is new."""
        while data := os.pread(self._file, 1 << 16, self._at):
            self._at += len(data)
            sys.stderr.buffer.write(data if self._filter is None else self._filter.feed(data))
        sys.stderr.flush()


def _in_front(
    child: int, pipe: int, early: BinaryIO, announce: Callable[[str], None], orders: int | None = None
) -> int:
    output = _Output(early)
    received = b""
    interrupted = False
    while True:
        try:
            code = _wait_a_moment(child, pipe)
            if orders is not None and select.select([orders], [], [], 0)[0]:
                if os.read(orders, 4096):
                    raise KeyboardInterrupt
                orders = None  # the machine that started the job has gone; the job is on its own
            if isinstance(code, bytes):
                had_id, received = b"\n" in received, received + code
                job_id = received.partition(b"\n")[0].decode()
                if not had_id and b"\n" in received:
                    output.then(job_folder(job_id) / SCREEN)
                if received.endswith(_STARTED):
                    output.pass_on()
                    announce(job_id)
                    return 0
            output.pass_on()
            if isinstance(code, int):
                return 130 if interrupted else code
        except KeyboardInterrupt:
            interrupted = True
            os.kill(child, signal.SIGTERM)


def _wait_a_moment(child: int, pipe: int) -> bytes | int | None:
    """What the job has sent over the pipe, or its exit code, or None if nothing has happened."""
    if select.select([pipe], [], [], _LOOK)[0]:
        data = os.read(pipe, 4096)
        if data:
            return data
    ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _print_how_to_follow(job_id: str) -> None:
    from muster.jobs.job_folders import short_id

    print(job_id, flush=True)
    job = short_id(job_id)
    sys.stderr.write(f"muster: job {job_id} is running in the background. {how_to_follow(job)}\n")
    if ends_at_logout():
        sys.stderr.write(
            "muster: this machine ends the processes of users who log out; `loginctl enable-linger` keeps the job\n"
        )


def how_to_follow(job: str) -> str:
    """What to type next for a job in the background."""
    return f"Follow it: `muster attach {job}`. Stop it: `muster stop {job}`"


def ends_at_logout() -> bool:
    """Whether systemd kills the processes of a user who logs out, and this user is not exempt."""
    return kills_user_processes(_logind_texts()) and not _lingers()


def loses_memory_at_logout() -> bool:
    """Whether systemd removes the shared memory of this user, who logs out while a job runs."""
    is_asked = os.path.isdir("/run/systemd/users") and os.getuid() >= _FIRST_USER
    return is_asked and removes_shared_memory(_logind_texts()) and not _lingers()


def kills_user_processes(texts: Iterable[str]) -> bool:
    """Whether logind.conf and the files after it set KillUserProcesses; the last setting counts."""
    return _setting(texts, "KillUserProcesses", default="no")


def removes_shared_memory(texts: Iterable[str]) -> bool:
    """Whether logind.conf and the files after it leave RemoveIPC on, which is the default."""
    return _setting(texts, "RemoveIPC", default="yes")


def _setting(texts: Iterable[str], name: str, *, default: str) -> bool:
    said = [word for text in texts for word in re.findall(rf"(?mi)^\s*{name}\s*=\s*(\w+)", text)]
    return [default, *said][-1].lower() in ("yes", "true", "on", "1")


def _logind_texts() -> list[str]:
    """The configuration of systemd-logind, the file that counts last."""
    folder = Path("/etc/systemd")
    files = [folder / "logind.conf", *sorted((folder / "logind.conf.d").glob("*.conf"))]
    return [file.read_text(errors="replace") for file in files if os.access(file, os.R_OK)]


def _lingers() -> bool:
    """Whether this user counts as logged in always (`loginctl enable-linger`)."""
    return Path("/var/lib/systemd/linger", getpass.getuser()).exists()
