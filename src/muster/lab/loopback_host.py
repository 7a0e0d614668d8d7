"""A host without namespaces: `python loopback_host.py MARK PID_FILE SSHD ARG...`.

It starts an sshd, prints `up` when that listens, and waits until its stdin closes. Then it kills the processes of
the host: its descendants, including orphans, which it adopts, and every process that carries MARK.
Standard library only: it is started as a file, because importing the package for every host would be slow.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

MARK_NAME = "MUSTER_LAB_HOST"
"""The environment variable that marks the host to which a process belongs."""

PR_SET_CHILD_SUBREAPER = 36


def members(host: int, mark: str) -> list[int]:
    """The live processes of a host, except `host` itself."""
    parents = {pid: parent for pid, parent, alive in _all_processes() if alive}
    wanted = f"{MARK_NAME}={mark}".encode()
    return [pid for pid in parents if pid != host and (_descends(pid, host, parents) or wanted in _words(pid))]


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _all_processes() -> Iterator[tuple[int, int, bool]]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        yield int(entry), int(parent), state not in "ZX"


def _words(pid: int) -> list[bytes]:
    """The command line of a process, and then its environment.

    A command is started with `env MARK`, which moves the mark from the one to the other while it becomes the command.
    """
    words: list[bytes] = []
    for name in ("cmdline", "environ"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                words += file.read().split(b"\0")
        except OSError:  # it belongs to another user
            pass
    return words


def _serve(mark: str, pid_file: str, sshd: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps dead children for us
    server = subprocess.Popen([*sshd, "-D"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not os.path.exists(pid_file):  # written when sshd listens; the owner has a timeout
        if not os.path.exists(f"/proc/{server.pid}"):
            raise SystemExit("sshd did not start")
        if select.select([sys.stdin], [], [], 0.01)[0]:
            break
    else:
        print("up", flush=True)
        select.select([sys.stdin], [], [])
    deadline = time.monotonic() + 5
    while (left := members(os.getpid(), mark)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.005)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3:])
