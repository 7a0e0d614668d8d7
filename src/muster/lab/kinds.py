"""The three ways a lab can be made, and which of them this machine and user allow."""

from __future__ import annotations

import os
import subprocess
from typing import Literal

from muster.lab.system_programs import find

Kind = Literal["root", "userns", "loopback"]
"""Namespaces as root, namespaces inside a user namespace, or mere loopback addresses."""

LIMITS: dict[Kind, tuple[str, ...]] = {
    "root": (),
    "userns": (
        "the hosts have only one user, you, who can become root in none of them",
        "freeze and slow --cpu work only where a control group was delegated to you",
    ),
    "loopback": (
        "the hosts are loopback addresses with an sshd and a process tree each, and share this machine's name, "
        "disk, /tmp and network",
        "the names h1, h2, ... are known to the lab's own ssh only",
        "of the faults only crash and reboot can be made",
    ),
}
"""What is missing in each kind, one sentence each."""

NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]

# What a host needs, tried out: where AppArmor restricts user namespaces, as on Ubuntu 24.04, they can be made
# but not used.
TRIAL = "mount -t tmpfs trial /tmp && mount -t proc proc /proc && ip link set lo up"


def choose() -> tuple[Kind, tuple[str, ...]]:
    """The best kind that works here, found by trying, and what is missing in it: first why it is not a better one."""
    as_root = _try([]) if os.getuid() == 0 else "you are not root"
    if as_root is None:
        return "root", LIMITS["root"]
    in_user_namespace = _try(["--user", "--map-root-user"])
    if in_user_namespace is None:
        return "userns", (f"the hosts live in a user namespace, because {as_root}", *LIMITS["userns"])
    why = f"the kernel allows no namespaces, because {as_root}, and {in_user_namespace}"
    return "loopback", (why, *LIMITS["loopback"])


def _try(user: list[str]) -> str | None:
    """None when namespaces work, else what went wrong."""
    argv = [find("unshare"), *user, *NAMESPACES, find("bash"), "-c", TRIAL]
    find("ip")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    if done.returncode == 0:
        return None
    return done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"unshare ended with {done.returncode}"
