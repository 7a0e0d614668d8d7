"""What kind of machine this host is."""

from __future__ import annotations

import os
import pwd
import sys

from ...shared.machine import counted
from .reading import find_program, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..check_probes import Question


def system(ask: Question) -> dict[str, Any]:
    """Return user, Python, CPUs, memory and operating system."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""  # a user id without a name, as in many containers
    names = [line.partition("=") for line in read("/etc/os-release").splitlines()]
    return {
        "uid": os.getuid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "shell": shell,
        "memory": (counted("/proc/meminfo", "MemTotal:") or 0) * 1024,
        "os": next((value.strip().strip('"') for name, _, value in names if name == "PRETTY_NAME"), ""),
    }


def clock(ask: Question) -> str:
    """Return the program that sets the clock."""
    return next((name for name in ("chronyc", "timedatectl", "ntpdate") if find_program(name)), "")
