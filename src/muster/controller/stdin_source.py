"""The stdin of `muster run` for rank 0: inherited by the agent on this machine, or sent to another host in pieces."""

from __future__ import annotations

import asyncio
import os
import select
import stat
from base64 import b64encode

from muster.controller.links.link import AgentLink, LinkLost

_PIECE = 1 << 15
"""Maximum bytes per message: input that is sent but not read is lost to the command after `muster run`."""

_BETWEEN_LOOKS = 0.3
"""Seconds between two checks whether a job in the background has come to the foreground."""


def is_for_ranks() -> bool:
    """Whether there is something to read: a pipe, a file, or a terminal where this job is in the foreground."""
    try:
        what = os.fstat(0)
        if os.isatty(0):
            return os.tcgetpgrp(0) == os.getpgrp()
        return not stat.S_ISDIR(what.st_mode) and what.st_rdev != os.stat(os.devnull).st_rdev
    except OSError:
        return False  # closed, or a terminal of another session


class Feed:
    """Reads descriptor 0 and sends it to rank 0, no faster than rank 0 reads it."""

    def __init__(self) -> None:
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, link: AgentLink) -> None:
        """Feed rank 0 of a new attempt, started by this agent."""
        self.end()
        self._task = asyncio.ensure_future(self._run(link))

    def end(self) -> None:
        """Stop reading for this attempt."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, link: AgentLink) -> None:
        try:
            while True:
                data = b"" if self._is_over else await _read()
                self._is_over = not data
                piece = b64encode(data).decode()
                # No timeout: a script that never reads its stdin never accepts another piece.
                answer = await link.request("stdin", limit=float("inf"), piece=piece, last=not data)
                if answer["closed"]:
                    return
        except LinkLost:
            pass


async def _read() -> bytes:
    """The next bytes when available; empty at the end."""
    try:
        if not stat.S_ISREG(os.fstat(0).st_mode):  # a regular file is always ready and cannot be polled
            await _readable()
            # In the background, what is typed is for the shell. If that was `fg`, the shell has read it, and the job is
            # in the foreground: a read now would block the event loop until the user types another line.
            while os.isatty(0) and not (os.tcgetpgrp(0) == os.getpgrp() and _has_input()):
                await asyncio.sleep(_BETWEEN_LOOKS)
                await _readable()
        return os.read(0, _PIECE)
    except OSError:
        return b""  # the terminal is closed, or a device that cannot be polled


def _has_input() -> bool:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(0))


async def _readable() -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(0, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(0)
