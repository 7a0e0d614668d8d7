"""Ctrl-Z during `muster run`: the shell gets the terminal back, and the job keeps running; `fg` brings it back.

A controller that stays stopped sends no heartbeats, and its agents would end the job. It therefore stops only until the
shell has noticed: another process then continues it, in the background, where its screen is a file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from muster.agent.prompts import waits_for_input
from muster.controller.controller import Controller
from muster.jobs.location import SCREEN
from muster.text import tilde

_BETWEEN_LOOKS = 0.3
"""Seconds between two checks whether the job is in the foreground again, or a rank reads the terminal."""

_CONTINUE = """
import os, signal, sys, time
os.setpgid(0, 0)
pid, group = map(int, sys.argv[1:])
begin, stopped = time.monotonic(), 0
while time.monotonic() < begin + 10:
    time.sleep(0.01)
    with open(f"/proc/{pid}/stat", "rb") as file:
        if file.read().rpartition(b")")[2].split()[0] != b"T":
            continue
    stopped = stopped or time.monotonic()
    try:
        is_taken = os.tcgetpgrp(0) != group
    except OSError:
        is_taken = True
    if is_taken or time.monotonic() > stopped + 1:
        os.kill(pid, signal.SIGCONT)
        break
"""
"""Continues a process once it is stopped and the shell has taken the terminal back, or after a second."""


class Suspension:
    """Moves the job of a controller to the background and back; called for Ctrl-Z."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._terminal = -1
        """A descriptor of the terminal while the job is in the background."""
        self._screens: dict[int, int] = {}
        """Copies of descriptors 1 and 2, where they are the terminal."""
        self._readers: set[int] = set()
        """Process ids of ranks that are stopped because they read the terminal."""
        self._watch: asyncio.Task[None] | None = None
        self._ignores_hangup = False
        """Whether SIGHUP was ignored before Ctrl-Z, as under nohup."""

    def __call__(self) -> None:
        """Give the terminal back to the shell."""
        if self._watch is not None:
            return
        screen = self._controller.screen
        terminal = _open_terminal() if _has_shell() else -1
        if terminal < 0:
            screen.warning("Ctrl-Z: no shell here can bring the job back, so it stays; press Ctrl-C to stop it")
            return
        argv = [sys.executable, "-I", "-S", "-c", _CONTINUE, str(os.getpid()), str(os.getpgrp())]
        path = self._controller.folder / SCREEN
        file = -1
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            watcher = subprocess.Popen(argv, stdin=terminal, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError as error:
            for fd in (terminal, file):
                if fd >= 0:
                    os.close(fd)
            screen.warning(f"Ctrl-Z: could not move the job to the background ({error.strerror}), so it stays")
            return
        self._terminal = terminal
        from muster.jobs.job_folders import short_id

        job = short_id(self._controller.job.id)
        screen.warning(
            f"Ctrl-Z: the job keeps running in the background. Bring it back: `fg` or `muster attach {job}`. "
            f"Stop it: `muster stop {job}`"
        )
        self._leave_terminal(file)
        self._watch = asyncio.ensure_future(self._until_foreground())
        os.kill(os.getpid(), signal.SIGSTOP)
        asyncio.get_running_loop().call_later(2.0, watcher.poll)

    def _leave_terminal(self, file: int) -> None:
        self._screens = {fd: os.dup(fd) for fd in (1, 2) if os.isatty(fd)}
        self._controller.screen.move(dict.fromkeys(self._screens, file))
        os.close(file)
        loop = asyncio.get_running_loop()
        self._ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        if not self._ignores_hangup:
            loop.remove_signal_handler(signal.SIGHUP)  # a closed terminal does not end the job
        for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)

    def _return_to_terminal(self) -> None:
        screen = self._controller.screen
        screen.move(self._screens)
        for copy in self._screens.values():
            os.close(copy)
        os.close(self._terminal)
        for number in (signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)
        if not self._ignores_hangup:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self._controller.listen_to_signals()
        self._continue_readers()
        where = f"; its output meanwhile is in {tilde(self._controller.folder / SCREEN)}" if self._screens else ""
        screen.warning(f"the job is in the foreground again{where}")

    async def _until_foreground(self) -> None:
        while True:
            await asyncio.sleep(_BETWEEN_LOOKS)
            try:
                if os.tcgetpgrp(self._terminal) == os.getpgrp():
                    break
                self._stop_readers()
            except OSError:  # the terminal was closed: `fg` will never come, and reading fails
                self._continue_readers()
                return
        self._return_to_terminal()
        self._watch = None

    def _stop_readers(self) -> None:
        """Stop ranks that read the terminal, as the kernel stops any process in the background that does.

        It does not stop ranks by itself, because they are in sessions of their own.
        """
        if not os.isatty(0):
            return
        terminal = os.fstat(0).st_rdev
        # Process ids of other hosts mean other processes on this one.
        here = {link.name for link in self._controller.agents.links if link.spec.here}
        for rank in self._controller.status.state(history=False).ranks:
            if rank.host not in here or rank.pid is None or rank.pid in self._readers:
                continue
            if _reads(rank.pid, terminal):
                self._readers.add(rank.pid)
                _send(rank.pid, signal.SIGSTOP)
                self._controller.screen.warning(
                    f"rank {rank.rank} reads the terminal, so it waits until `fg` brings the job to the foreground"
                )

    def _continue_readers(self) -> None:
        for pid in self._readers:
            _send(pid, signal.SIGCONT)
        self._readers.clear()


def _reads(pid: int, terminal: int) -> bool:
    """Whether a process is blocked in reading this terminal as its stdin."""
    try:
        Path(f"/proc/{pid}/syscall").read_bytes()
        return os.stat(f"/proc/{pid}/fd/0").st_rdev == terminal and waits_for_input(pid)
    except OSError:
        return False


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it has ended


def _open_terminal() -> int:
    """A descriptor of the terminal of this session, or -1."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return -1


def _has_shell() -> bool:
    """Whether a process of this session outside our process group started us, such as a shell with job control."""
    pid = os.getpid()
    try:
        while os.getpgid(pid) == os.getpgrp():
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
            if pid < 1:
                return False
        return os.getsid(pid) == os.getsid(0)
    except OSError:
        return False
