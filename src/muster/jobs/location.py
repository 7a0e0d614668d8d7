"""Where a running job answers, and which process runs it: what the controller leaves for other commands to find."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

STATE = "state.json"
"""The job's state as it was last written."""

SCREEN = "screen.log"
"""What a detached job would have shown on a terminal."""

_SOCKET = "socket"
_ELSEWHERE = "socket-at"
"""A file with the path of the socket, where it could not be in the job's folder."""

_LONGEST = 103
"""Bytes in a socket's path: 107 on Linux, 103 on macOS."""


def socket_in(folder: Path) -> Path | None:
    """The path for a job's socket in its own folder; None if the kernel does not take one so long."""
    path = folder / _SOCKET
    return path if len(os.fsencode(path)) <= _LONGEST else None


def socket_elsewhere(folder: Path) -> Path:
    """A short path for a job's socket, in a folder that only its user can enter, made if need be; OSError if not."""
    # Not $XDG_RUNTIME_DIR: systemd empties that when its user logs out, and a detached job goes on.
    base = Path(f"/tmp/muster-{os.getuid()}")
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    # /tmp is everybody's: one who made this folder before us could read what the job says, and stop it.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{base} is not a folder of this user alone")
    path = base / f"{folder.name}.socket"
    if len(os.fsencode(path)) > _LONGEST:
        path = base / f"{folder.name[:15]}{folder.name[-5:]}.socket"  # its time and its random end
    return path


def leave_address(folder: Path, path: Path) -> None:
    """Say in the job's folder where its socket is."""
    if path.parent != folder:
        (folder / _ELSEWHERE).write_text(str(path))


def address(folder: Path) -> Path | None:
    """Where the socket of a job is; None if there is none any more."""
    path = folder / _SOCKET
    if path.exists():
        return path
    try:
        return Path((folder / _ELSEWHERE).read_text())
    except OSError:
        return None


def remove_address(folder: Path) -> None:
    """Take a socket away that nobody answers at any more."""
    path = address(folder)
    if path is not None:
        path.unlink(missing_ok=True)
    (folder / _ELSEWHERE).unlink(missing_ok=True)


def birth(pid: int) -> str:
    """When a process began, in a form that no other process with this number has; empty if there is none.

    A number counts in one pid namespace of one boot only, so these belong to it.
    """
    # /proc may be that of a namespace above ours, where our own number is somebody else's.
    name = "self" if pid == os.getpid() else str(pid)
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        boot, space = _boot_and_space()
    except OSError:
        return "" if sys.platform == "linux" else _birth_by_ps(pid)
    return "" if fields[0] in (b"Z", b"X") else f"{boot}-{int(fields[19])}-{space}"


def is_hidden(born: str) -> bool:
    """Whether a process with this birth may live in this boot and not be seen: its container has numbers of its own."""
    boot, _, rest = born.partition("-")
    try:
        here = _boot_and_space()
    except OSError:
        return False
    return boot == here[0] and rest.partition("-")[2] != here[1]


def _boot_and_space() -> tuple[str, str]:
    """The boot of this machine and the pid namespace of this process."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read(8)
    return boot, os.readlink("/proc/self/ns/pid")[len("pid:[") : -1]


def _birth_by_ps(pid: int) -> str:
    """When a process started, from `ps`, on a system without /proc."""
    import subprocess

    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=10)
    return done.stdout.strip()
