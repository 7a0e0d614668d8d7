"""What ranks may use here: CPUs, locked memory, open files; and which process or file set the limit."""

from __future__ import annotations

import os
import re
import resource

from ...shared.machine import control_groups
from .reading import parent, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..check_probes import Question


def cpus(ask: Question) -> dict[str, Any]:
    """Return which CPUs are allowed, by which of our ancestors, and how much of their time."""
    allowed = os.sched_getaffinity(0)
    pid = binder = os.getpid()
    try:
        while pid > 1 and os.sched_getaffinity(pid) <= allowed:
            binder, pid = pid, parent(pid)
        comm = read(f"/proc/{binder}/comm")
        # Where all is bound, from the first process on, a container was given these CPUs.
        everything = os.sched_getaffinity(1) <= allowed
    except OSError:
        comm, everything = "", False
    shares: list[float] = []
    for folder in control_groups("cpu"):
        words = read(f"{folder}/cpu.max").split()
        limit, period = words or [read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")]
        if limit.isdigit():  # else there is none
            shares.append(int(limit) / int(period))
    return {
        "allowed": len(allowed),
        "online": os.cpu_count(),
        "quota": min(shares, default=None),
        "binder": [binder, comm],
        "everything": everything,
    }


def limits(ask: Question) -> dict[str, Any]:
    """Return each limit, and the oldest of our ancestors that has it. -1 is no limit."""
    answer: dict[str, Any] = {}
    for name, number, title, flag in (
        ("memlock", resource.RLIMIT_MEMLOCK, "Max locked memory", "-l"),
        ("nofile", resource.RLIMIT_NOFILE, "Max open files", "-n"),
    ):
        soft, hard = (-1 if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number))
        lowered = (
            path
            for path in ("~/.bashrc", "~/.profile", "~/.zshenv", "/etc/bash.bashrc")
            if re.search(rf"^\s*ulimit\s+(-[SH]\s*)?{flag}\s", read(path) + "\n", re.MULTILINE)
        )
        by = _who_set(title, "unlimited" if soft < 0 else str(soft))
        answer[name] = {"soft": soft, "hard": hard, "by": by, "file": next(lowered, ""), "flag": flag}
    return answer


def _who_set(title: str, value: str) -> list[Any]:
    """Process id and name of the oldest ancestor with this soft limit."""
    found = [0, ""]
    pid = parent(os.getppid())  # our parent, the agent, has raised its own limit on files
    while pid > 0 and re.search(rf"^{title} +{value} ", read(f"/proc/{pid}/limits"), re.MULTILINE):
        found = [pid, read(f"/proc/{pid}/comm")]
        pid = parent(pid)
    return found
