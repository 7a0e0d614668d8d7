"""A child process with three pipes, integrated into the event loop without blocking."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster.agent.rank_stdin import INHERITED
from muster.controller.debug_log import command_line
from muster.controller.links.open_files import usual_limit
from muster.jobs.location import birth
from muster.shared import processes
from muster.shared.wire import Writer

_LEAVE = 2.0
"""Seconds for a child to forward the last that was written to it."""

_log = logging.getLogger("muster.child")


@dataclass(frozen=True, kw_only=True)
class Handed:
    """A child process that another process of this user has started, with our ends of its pipes."""

    pid: int
    born: str
    descriptors: tuple[int, int, int]
    unsent: bytes = b""
    """What is still to be written to it."""


class _HandedProcess:
    """The part of subprocess.Popen that is possible for a process that is not our child."""

    def __init__(self, pid: int, born: str) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._born = born

    def poll(self) -> int | None:
        """Whether it has ended; its exit code is not known."""
        if self.returncode is None and birth(self.pid) != self._born:
            self.returncode = -1
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            processes.kill([self.pid], number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> None:
        """Its new parent waits for it."""


class StartedChild(Protocol):
    """What a connection needs of the process that carries it: a child, or a command in a pod."""

    def send(self, data: bytes) -> None:
        """Write to its stdin without blocking."""
        ...

    async def exit_code(self, limit: float) -> int | None:
        """The exit code; None if it is not known within `limit` seconds."""
        ...

    def close(self, *, kill: bool) -> None:
        """Close the pipes, and kill the process if `kill`."""
        ...

    def leave(self) -> None:
        """Close the pipes in a moment, so that what was written arrives."""
        ...


class StartChild(Protocol):
    """Starts such a process; raises OSError if that is not possible."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        on_data: Callable[[bytes], None],
        on_words: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> StartedChild:
        """The arguments are those of `Child`."""
        ...


class Child:
    """The process of a transport: its stdin, stdout, stderr and exit."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        on_data: Callable[[bytes], None],
        on_words: Callable[[bytes], None],
        on_closed: Callable[[], None],
        env: Mapping[str, str] | None = None,
        for_ranks: int | None = None,
        by_socket: bool = False,
        handed: Handed | None = None,
    ) -> None:
        """Start the process; raises OSError if the program does not exist. `for_ranks` is the stdin of its ranks.

        Its stdin is a socket if `by_socket`, over which `give` works. A process that is `handed` over runs already.
        """
        self._process: subprocess.Popen[bytes] | _HandedProcess
        if handed is None:
            self._process, self._descriptors = _start(argv, env, for_ranks, by_socket)
            _log.debug("started process %d: %s", self._process.pid, command_line(argv))
        else:
            self._process, self._descriptors = _HandedProcess(handed.pid, handed.born), handed.descriptors
        self._below: dict[int, str] = {}
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        stdin, stdout, stderr = self._descriptors
        os.set_blocking(stdin, False)
        self._writer = Writer(stdin, lambda data: os.write(stdin, data))
        self._loop.add_reader(stdout, self._read, stdout, 1 << 18, on_data, on_closed)
        # A ControlMaster that ssh leaves behind keeps stderr open, so end of file on it is not significant.
        self._loop.add_reader(stderr, self._read, stderr, 1 << 16, on_words, lambda: None)
        if handed is not None:
            self.send(handed.unsent)

    def hand_over(self) -> Handed:
        """Leave the process to another one, which gets its pipes; this object is of no further use."""
        self._stop_watching()
        self._is_closed = True
        if isinstance(self._process, subprocess.Popen):
            self._process.returncode = self._process.returncode or 0  # not ours any more, so nobody waits for it
        pid = self._process.pid
        return Handed(pid=pid, born=birth(pid), descriptors=self._descriptors, unsent=self._writer.drop())

    def give(self, descriptor: int) -> bool:
        """Send a descriptor to the process before what is sent next; False if its stdin is not a socket."""
        if self._writer.pending:
            return False
        try:
            with socket.socket(fileno=os.dup(self._descriptors[0])) as connection:
                socket.send_fds(connection, [b"\n"], [descriptor])
        except OSError:
            return False
        return True

    def _stop_watching(self) -> None:
        self._loop.remove_writer(self._writer.fd)
        for descriptor in self._descriptors[1:]:
            self._loop.remove_reader(descriptor)

    def _read(self, fd: int, size: int, on_data: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        try:
            data = os.read(fd, size)
        except OSError:
            data = b""
        if data:
            on_data(data)
        else:
            self._loop.remove_reader(fd)
            on_closed()

    def send(self, data: bytes = b"") -> None:
        """Write without blocking; if the child has exited, its stdout closes."""
        if self._is_closed:
            return
        try:
            self._writer.send(data)
        except OSError:
            self._loop.remove_writer(self._writer.fd)
            return
        if self._writer.pending:
            self._loop.add_writer(self._writer.fd, self.send)
        else:
            self._loop.remove_writer(self._writer.fd)

    async def exit_code(self, limit: float) -> int | None:
        """The exit code; None if it has not exited within `limit` seconds."""
        deadline = time.monotonic() + limit
        while self._process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        _log.debug("process %d ended with code %s", self._process.pid, self._process.returncode)
        return self._process.returncode

    async def terminate(self, limit: float) -> None:
        """Send SIGTERM, and wait for the process to exit for at most `limit` seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            await self.exit_code(limit)

    def close(self, *, kill: bool) -> None:
        """Close the pipes, and kill the process if `kill`; otherwise it sees its stdin close."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_watching()
        if kill and self._process.poll() is None:
            self._process.kill()
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                pass  # it is stuck in the kernel, and nothing depends on it
        for descriptor in self._descriptors:
            os.close(descriptor)

    def leave(self) -> None:
        """Kill the child in a moment, so that it can forward what was written to it."""
        self._loop.call_later(_LEAVE, lambda: self.close(kill=True))

    def note_descendants(self) -> None:
        """Record the current descendants, to find them again after the process has exited."""
        if self._process.poll() is None and os.path.isdir("/proc/self"):
            self._below |= {pid: birth(pid) for pid in processes.descendants(self._process.pid)}

    def kill_descendants(self) -> None:
        """Kill the recorded descendants that are still alive."""
        processes.kill([pid for pid, born in self._below.items() if born and birth(pid) == born], signal.SIGKILL)


def _start(
    argv: Sequence[str], env: Mapping[str, str] | None, for_ranks: int | None, by_socket: bool
) -> tuple[subprocess.Popen[bytes], tuple[int, int, int]]:
    """Start a process; returns our ends of its pipes as well."""
    if for_ranks is not None:
        env = {**(os.environ if env is None else env), INHERITED: str(for_ranks)}
    ours, theirs = socket.socketpair() if by_socket else (None, None)
    try:
        with usual_limit():
            # In its own session, so that Ctrl-C on the terminal reaches only the controller, which stops the agents.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if theirs is None else theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
                pass_fds=() if for_ranks is None else (for_ranks,),
                bufsize=0,
            )
    except BaseException:
        if ours is not None:
            ours.close()
        raise
    finally:
        if theirs is not None:
            theirs.close()
    files = (ours or process.stdin, process.stdout, process.stderr)
    descriptors: list[int] = []
    for file in files:
        assert file is not None
        descriptors.append(os.dup(file.fileno()))
        file.close()
    return process, (descriptors[0], descriptors[1], descriptors[2])
