"""Waiting for something to happen, and ending the processes that a test has started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
P = TypeVar("P", bound="subprocess.Popen[Any]")

INTERVAL = 0.05
"""Seconds between two looks."""


def patience(limit: float) -> float:
    """A limit in seconds that only ends what hangs: with ten processes per core, everything takes ten times as long.

    Not for a limit that proves how long something takes.
    """
    return limit * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(
    what: str,
    check: Callable[[], T | None],
    limit: float = 0,
    said: Callable[[], str] = str,
    *,
    every: float = INTERVAL,
) -> T:
    """Wait until `check` returns something true, and return it; an AssertionError says what did not come.

    Without a limit, it waits 30 seconds, and longer on a busy machine. A check that starts a program or looks at all
    processes can cost more CPU time than what it waits for: the pause between two of them doubles up to `every`.
    """
    limit = limit or patience(30)
    deadline = time.monotonic() + limit
    pause = every / 10  # most of what tests wait for comes within milliseconds
    while not (found := check()):
        _check_time(deadline, what, limit, said)
        time.sleep(pause)
        pause = min(2 * pause, every)
    return found


async def wait_until_async(what: str, check: Callable[[], object], limit: float = 0) -> None:
    """The same in an event loop, which keeps running meanwhile."""
    limit = limit or patience(30)
    deadline = time.monotonic() + limit
    while not check():
        _check_time(deadline, what, limit, str)
        await asyncio.sleep(INTERVAL)


def _check_time(deadline: float, what: str, limit: float, said: Callable[[], str]) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(f"waited {limit} s for {what}\n{said()}")


def end(process: subprocess.Popen[Any]) -> None:
    """End a process if it still runs, by SIGTERM and then by SIGKILL, and close its pipes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def process_state(pid: int) -> str:
    """The letter of a process's state in /proc, or nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


@contextmanager
def ending(process: P) -> Generator[P]:
    """`with ending(subprocess.Popen(...)) as process:` ends it whatever happens in the block."""
    try:
        yield process
    finally:
        end(process)
