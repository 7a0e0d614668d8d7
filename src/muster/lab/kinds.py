"""The three kinds of lab, and which of them this machine and user allow."""

from __future__ import annotations

import os
import subprocess
from typing import Literal

from muster.lab.system_programs import find

Kind = Literal["root", "userns", "loopback"]
"""Namespaces as root, namespaces inside a user namespace, or only loopback addresses."""

LIMITS: dict[Kind, tuple[str, ...]] = {
    "root": (),
    "userns": (
        "you are the only user of the hosts and cannot become root there",
        "freeze and slow --cpu work only if a control group was delegated to you",
    ),
    "loopback": (
        "each host is a loopback address with its own sshd and process tree; all share this machine's name, disk, "
        "/tmp and network",
        "only the lab's own ssh knows the names h1, h2, ...",
        "of the faults, only crash and reboot work",
    ),
}
"""What each kind lacks, one sentence each."""

NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]

# Test what a host needs: where AppArmor restricts user namespaces, as on Ubuntu 24.04, they can be created
# but not used.
TRIAL = "mount -t tmpfs trial /tmp && mount -t proc proc /proc && ip link set lo up"


def choose() -> tuple[Kind, tuple[str, ...]]:
    """The best kind that works here, found by testing, and its limits, starting with why a better one does not work."""
    as_root = _try([]) if os.getuid() == 0 else "you are not root"
    if as_root is None:
        return "root", LIMITS["root"]
    in_user_namespace = _try(["--user", "--map-root-user"])
    if in_user_namespace is None:
        return "userns", (f"the hosts run in a user namespace ({as_root})", *LIMITS["userns"])
    why = f"namespaces are not available ({as_root}; {in_user_namespace})"
    return "loopback", (why, *LIMITS["loopback"])


def _try(user: list[str]) -> str | None:
    """None if namespaces work, otherwise the error."""
    argv = [find("unshare"), *user, *NAMESPACES, find("bash"), "-c", TRIAL]
    find("ip")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    if done.returncode == 0:
        return None
    return (
        done.stderr.strip().splitlines()[0]
        if done.stderr.strip()
        else f"unshare failed with exit code {done.returncode}"
    )
