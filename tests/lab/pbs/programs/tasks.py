"""A task is a session: its processes are found, signalled and killed by session id, as mom does it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

NO_PROGRAM = 254
KILLED = 256
"""Added to the number of the signal that ended a task."""


def _stats() -> Iterator[tuple[int, list[str]]]:
    """The living processes of this host, with the fields of /proc/PID/stat from the third one on."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                yield int(entry), fields


def members(session: int) -> list[int]:
    """The living processes of a session; whoever called setsid is not among them."""
    return [pid for pid, fields in _stats() if int(fields[3]) == session]


def usage(sessions: Collection[int]) -> tuple[int, int]:
    """CPU seconds and resident bytes of the processes of these sessions, with the children that they waited for."""
    found = [fields for _, fields in _stats() if int(fields[3]) in sessions]
    ticks = sum(int(field) for fields in found for field in fields[11:15])
    return ticks // os.sysconf("SC_CLK_TCK"), sum(int(fields[21]) for fields in found) * os.sysconf("SC_PAGE_SIZE")


def signal_session(session: int, number: int) -> int:
    """Send a signal to every process of a session and say how many there were."""
    pids = members(session)
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return len(pids)


class Task:
    """A program that mom started, or a session that was attached to the job."""

    def __init__(self, number: int, *, session: int = 0) -> None:
        self.number = number
        self.session = session
        self.attached = session > 0
        self.exit_status: int | None = None
        self.ended = threading.Event()

    def start(
        self,
        argv: list[str],
        *,
        env: dict[str, str],
        cwd: str,
        streams: tuple[int, int, int],
        lingers: Callable[[], bool],
        executable: str | None = None,
    ) -> None:
        """Start the program; when it ends, what is left of its session is killed, unless it `lingers`."""
        try:
            process = self._popen(argv, env, cwd, streams, executable)
        except OSError as error:
            # The name comes from memory that mom has freed.
            os.write(streams[2], b"\x90\xb2U: " + (error.strerror or "").encode() + b"\n")
            self._over(NO_PROGRAM)
            return
        self.session = process.pid
        threading.Thread(target=self._wait, args=(process, lingers), daemon=True).start()

    @staticmethod
    def _popen(
        argv: list[str], env: dict[str, str], cwd: str, streams: tuple[int, int, int], executable: str | None
    ) -> subprocess.Popen[bytes]:
        def popen(argv: list[str]) -> subprocess.Popen[bytes]:
            stdin, stdout, stderr = streams
            return subprocess.Popen(
                argv,
                executable=executable,
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                umask=0o077,
            )

        try:
            return popen(argv)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return popen(["/bin/sh", *argv])  # what execvp does with a script that has no `#!`

    def _wait(self, process: subprocess.Popen[bytes], lingers: Callable[[], bool]) -> None:
        code = process.wait()
        status = code if code >= 0 else KILLED - code
        if lingers() and members(self.session):
            # The job is being ended: others of the session have until the SIGKILL.
            self.exit_status = status
            return
        signal_session(self.session, signal.SIGKILL)
        self._over(status)

    def signal(self, number: int) -> None:
        """Send a signal to the task's session."""
        if self.session and not self.ended.is_set():
            signal_session(self.session, number)

    def kill(self) -> None:
        """End the task for good."""
        self.signal(signal.SIGKILL)
        if self.attached or self.exit_status is not None:
            self._over(self.exit_status or 0)

    def _over(self, status: int) -> None:
        self.exit_status = status
        self.ended.set()
