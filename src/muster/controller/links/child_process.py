"""A child process with three pipes, integrated into the event loop without blocking."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
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
    ) -> None:
        """Start the process; raises OSError if the program does not exist. `for_ranks` is the stdin of its ranks."""
        if for_ranks is not None:
            env = {**(os.environ if env is None else env), INHERITED: str(for_ranks)}
        with usual_limit():
            # In its own session, so that Ctrl-C on the terminal reaches only the controller, which stops the agents.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
                pass_fds=() if for_ranks is None else (for_ranks,),
                bufsize=0,
            )
        _log.debug("started process %d: %s", self._process.pid, command_line(argv))
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._below: dict[int, str] = {}
        self._files = (stdin, stdout, stderr)
        self._loop = asyncio.get_running_loop()
        os.set_blocking(stdin.fileno(), False)
        self._writer = Writer(stdin.fileno(), lambda data: os.write(stdin.fileno(), data))
        self._loop.add_reader(stdout.fileno(), self._read, stdout.fileno(), 1 << 18, on_data, on_closed)
        # A ControlMaster that ssh leaves behind keeps stderr open, so end of file on it is not significant.
        self._loop.add_reader(stderr.fileno(), self._read, stderr.fileno(), 1 << 16, on_words, lambda: None)

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
        if self._files[0].closed:
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
        if self._files[0].closed:
            return
        self._loop.remove_writer(self._writer.fd)
        for file in self._files[1:]:
            self._loop.remove_reader(file.fileno())
        if kill and self._process.poll() is None:
            self._process.kill()
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                pass  # it is stuck in the kernel, and nothing depends on it
        for file in self._files:
            file.close()

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
