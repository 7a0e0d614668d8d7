"""`muster run --detach`: the same command in the background, where neither logout nor a closed terminal ends it."""

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

_LOOK = 0.1
"""Seconds between two looks at what the job has said."""

_STARTED = b"started\n"


class Background:
    """The side of the job: what it tells the command in front."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def settle(self, job_id: str, warning: str = "") -> None:
        """From here on the job's screen is a file in its folder, and `warning` stands first on it."""
        path = make_job_folder(job_id) / SCREEN
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        if warning:
            sys.stderr.write(f"muster: {warning}\n")
            sys.stderr.flush()
        self._tell(f"{job_id}\n".encode())

    def started(self) -> None:
        """All ranks have been started: nobody needs to wait any more."""
        self._tell(_STARTED)

    def _tell(self, data: bytes) -> None:
        try:
            os.write(self._pipe, data)
        except OSError:
            pass  # the command in front has gone: its terminal was closed


def detached(run: Callable[[Background], int]) -> int:
    """Run a job in a process of its own, and return when its ranks have started, or with its exit code if they do not.

    It forks before anything of the job is there, so that all of it, the hosts of --lab too, belongs to the new process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    source, sink = os.pipe()
    # What is said before the job has a folder; not our own stderr, which whoever inherits it would keep open.
    with tempfile.TemporaryFile() as early:
        child = os.fork()
        if child:
            os.close(sink)
            return _in_front(child, source, early)
        os.close(source)
        os.setsid()  # no terminal, and none of the signals that one sends
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(early.fileno(), 1)
        os.dup2(early.fileno(), 2)
    return run(Background(sink))


class _Words:
    """What the job has said so far, passed on to our stderr."""

    def __init__(self, early: BinaryIO) -> None:
        self._file = early.fileno()
        self._at = 0

    def then(self, path: Path) -> None:
        """From here on it speaks in another file."""
        self.pass_on()
        self._file, self._at = os.open(path, os.O_RDONLY), 0

    def pass_on(self) -> None:
        """What is new."""
        while data := os.pread(self._file, 1 << 16, self._at):
            self._at += len(data)
            sys.stderr.buffer.write(data)
        sys.stderr.flush()


def _in_front(child: int, pipe: int, early: BinaryIO) -> int:
    words = _Words(early)
    told = b""
    interrupted = False
    while True:
        try:
            code = _wait_a_moment(child, pipe)
            if isinstance(code, bytes):
                had_id, told = b"\n" in told, told + code
                job_id = told.partition(b"\n")[0].decode()
                if not had_id and b"\n" in told:
                    words.then(job_folder(job_id) / SCREEN)
                if told.endswith(_STARTED):
                    words.pass_on()
                    _tell_how_to_follow(job_id)
                    return 0
            words.pass_on()
            if isinstance(code, int):
                return 130 if interrupted else code
        except KeyboardInterrupt:
            interrupted = True
            os.kill(child, signal.SIGTERM)


def _wait_a_moment(child: int, pipe: int) -> bytes | int | None:
    """What the job has told, or its exit code, or None if nothing has happened."""
    if select.select([pipe], [], [], _LOOK)[0]:
        data = os.read(pipe, 4096)
        if data:
            return data
    ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _tell_how_to_follow(job_id: str) -> None:
    print(job_id, flush=True)
    sys.stderr.write(
        f"muster: job {job_id} goes on in the background: `muster attach {job_id}` shows its screen, "
        f"`muster stop {job_id}` ends it\n"
    )
    if _ends_at_logout():
        sys.stderr.write(
            "muster: this machine ends all processes of a user who logs out; `loginctl enable-linger` lets them live\n"
        )


def _ends_at_logout() -> bool:
    """Whether systemd is set to kill what a user leaves behind, and this user is not excepted."""
    folder = Path("/etc/systemd")
    files = [folder / "logind.conf", *sorted((folder / "logind.conf.d").glob("*.conf"))]
    texts = [file.read_text(errors="replace") for file in files if os.access(file, os.R_OK)]
    return kills_user_processes(texts) and not Path("/var/lib/systemd/linger", getpass.getuser()).exists()


def kills_user_processes(texts: Iterable[str]) -> bool:
    """What logind.conf and the files after it say; the last word counts."""
    said = [word for text in texts for word in re.findall(r"(?mi)^\s*KillUserProcesses\s*=\s*(\w+)", text)]
    return bool(said) and said[-1].lower() in ("yes", "true", "on", "1")
