"""The three ways a lab can be made, and which of them this machine and user allow."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Literal

from muster.lab.system_programs import find

Kind = Literal["root", "userns", "loopback"]
"""Namespaces as root, namespaces inside a user namespace, or mere loopback addresses."""

USERNS_LIMITS = (
    "the hosts have only one user, you, who can become root in none of them",
    "freeze and slow --cpu work only where a control group was delegated to you",
)

LOOPBACK_LIMITS = (
    "the hosts are loopback addresses with an sshd and a process tree each, and share this machine's name, "
    "disk, /tmp and network",
    "the names h1, h2, ... are known to the lab's own ssh only",
    "of the faults only crash and reboot can be made",
)

NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]

# What a host needs, tried out: where AppArmor restricts user namespaces, as on Ubuntu 24.04, they can be made
# but not used.
TRIAL = "mount -t tmpfs trial /tmp && mount -t proc proc /proc && ip link set lo up"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A kind of lab, and what is missing in it, one sentence each."""

    kind: Kind
    limits: tuple[str, ...]


def describe(kind: Kind, reason: str | None = None) -> Choice:
    """A kind with its limits; `reason` says why it was not a better one."""
    missing = {"root": (), "userns": USERNS_LIMITS, "loopback": LOOPBACK_LIMITS}[kind]
    return Choice(kind=kind, limits=((reason,) if reason else ()) + missing)


def choose() -> Choice:
    """The best kind that works here, found by trying."""
    as_root = _try([]) if os.getuid() == 0 else "you are not root"
    if as_root is None:
        return describe("root")
    in_user_namespace = _try(["--user", "--map-root-user"])
    if in_user_namespace is None:
        return describe("userns", f"the hosts live in a user namespace, because {as_root}")
    return describe("loopback", f"the kernel allows no namespaces, because {as_root}, and {in_user_namespace}")


def _try(user: list[str]) -> str | None:
    """None when namespaces work, else what went wrong."""
    argv = [find("unshare"), *user, *NAMESPACES, find("bash"), "-c", TRIAL]
    find("ip")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    if done.returncode == 0:
        return None
    return done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"unshare ended with {done.returncode}"
