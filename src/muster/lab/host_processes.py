"""Processes inside a host, listed and signaled from outside, including those of its containers."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from typing import Any

NS_GET_PARENT = 0xB702
"""The ioctl that opens the parent of a namespace (linux/nsfs.h)."""


def living_in(namespace: str) -> list[int]:
    """All live processes in a PID namespace, given as in /proc/PID/ns/pid, or in one nested in it."""
    belongs = {namespace: True}
    found: list[int] = []
    for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]:
        try:
            own = os.readlink(f"/proc/{pid}/ns/pid")
            if own not in belongs:
                belongs[own] = namespace in _outer_namespaces(pid)
        except OSError:  # it has ended, or belongs to another user
            continue
        if belongs[own] and not _is_zombie(pid):
            found.append(pid)
    return found


def _outer_namespaces(pid: int) -> list[str]:
    """The visible PID namespaces that enclose that of a process."""
    found: list[str] = []
    handle = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
    try:
        while True:
            outer = fcntl.ioctl(handle, NS_GET_PARENT)
            os.close(handle)
            handle = outer
            found.append(os.readlink(f"/proc/self/fd/{handle}"))
    except PermissionError:  # the next one encloses our own
        return found
    finally:
        os.close(handle)


def _is_zombie(pid: int) -> bool:
    """Whether a process is dead, gone, or waiting only for its parent to reap it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


class HostProcess(subprocess.Popen[Any]):
    """A Popen whose signals go to the command inside the host, not to the nsenter that waits for it.

    Killing nsenter would leave the command running; and when that ended, the machine's pid 1 would have to
    reap it before the host could end, and some are slow to do so.
    """

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command, or to nsenter when it has not started the command yet."""
        self.poll()
        if self.returncode is not None:
            return
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            os.kill(int(children[0]), sig)
        except (OSError, IndexError):
            super().send_signal(sig)
