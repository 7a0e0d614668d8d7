"""What kind of machine a host is: facts for the table and for other checks; nothing here can be wrong."""

from __future__ import annotations

from typing import Any

from muster.check.definition import Check
from muster.text import size_text


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host."""
    import os
    import pwd
    import sys

    facts: dict[str, Any] = {
        "uid": os.getuid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "shell": "",
        "memory": 0,
        "os": "",
    }
    try:
        facts["shell"] = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        pass  # a user id without a name, as in many containers
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemTotal"):
                facts["memory"] = int(line.split()[1]) * 1024
                break
    try:
        with open("/etc/os-release") as file:
            for line in file:
                if line.startswith("PRETTY_NAME="):
                    facts["os"] = line.partition("=")[2].strip().strip('"')
    except OSError:
        pass
    return facts


def table(answer: dict[str, Any]) -> dict[str, str]:
    """Facts for people."""
    return {
        "Python": answer["python"],
        "system": f"{answer['os']}, Linux {answer['kernel']}",
        "CPUs": str(answer["cpus"]),
        "memory": size_text(answer["memory"], 2),
    }


CHECK = Check(probe=probe, judge=lambda cluster: (), table=table)
