"""Runs one command for a limited time and writes down what it and everything it started has used.

usage: reaper.py RESULT LIMIT COMMAND [ARGUMENT ...]

Ranks are grandchildren that other processes wait for, or nobody does. As their subreaper this process inherits all
whose parent has gone, so what it has waited for in the end is the CPU time of the whole tree.
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
"""Seconds that what the command started may outlive it before it is killed and called a leftover."""


def main() -> None:
    """Run the command of the command line."""
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
    """Wait for a child's end without polling, so that the moment is exact; False when the time is up."""
    handle = os.pidfd_open(pid)
    try:
        return bool(select.select([handle], [], [], limit)[0])
    finally:
        os.close(handle)


def wait_for_the_rest(limit: float) -> int:
    """Wait until nothing is left below this process; how many still live when the time is up."""
    deadline = time.monotonic() + limit
    while reap() and time.monotonic() < deadline:
        time.sleep(0.005)
    return len(below(os.getpid()))


def reap() -> bool:
    """Take note of every child that has ended; whether there are others."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def end_below() -> None:
    """Kill all that descends from here, each by its id, until there is nothing."""
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
    """Every process that descends from `root` and is no zombie."""
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
