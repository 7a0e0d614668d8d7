"""Runs one command with a timeout and records the resources used by it and everything it started.

usage: reaper.py RESULT LIMIT COMMAND [ARGUMENT ...]

Ranks are grandchildren that other processes reap, or no one does. As their subreaper, this process inherits all whose
parent has exited, so in the end it knows the CPU time of the whole tree.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEAVING_LIMIT = 10.0
"""Seconds that descendants may outlive the command before they are killed and reported as leftovers."""


def main() -> None:
    """Run the given command."""
    result, limit, argv = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    begin = time.time()
    command = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        ended = has_ended(command.pid, limit)
        end = time.time()
        if not ended:
            end_below()
        code = command.wait()
        left = wait_for_the_rest(LEAVING_LIMIT)
    finally:
        end_below()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = {
        "begin": begin,
        "end": end,
        "code": code,
        "in_time": ended,
        "left": left,
        "cpu": usage.ru_utime + usage.ru_stime,
    }
    result.write_text(json.dumps(said))


def has_ended(pid: int, limit: float) -> bool:
    """Wait for a child to end, without polling, so that the time is exact; return False after the timeout."""
    handle = os.pidfd_open(pid)
    try:
        return bool(select.select([handle], [], [], limit)[0])
    finally:
        os.close(handle)


def wait_for_the_rest(limit: float) -> int:
    """Wait until this process has no descendants; return how many are left after the timeout."""
    deadline = time.monotonic() + limit
    while reap() and time.monotonic() < deadline:
        time.sleep(0.005)
    return len(below(os.getpid()))


def reap() -> bool:
    """Reap all children that have ended; return whether there are others."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def end_below() -> None:
    """Kill all descendants, each by its id, until none is left."""
    deadline = time.monotonic() + LEAVING_LIMIT
    while time.monotonic() < deadline:
        for pid in below(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not reap():
            return
        time.sleep(0.005)


def below(root: int) -> list[int]:
    """All descendants of `root` that are not zombies."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                state, parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(name))
    found = list(children.get(root, []))
    for pid in found:
        found += children.get(pid, [])
    return found


if __name__ == "__main__":
    main()
