"""Where a running job answers and which process runs it: what the controller leaves for other commands to find."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from muster import home
from muster.jobs.kept_files import is_trusted, read_regular

STATE = "state.json"
"""The job's state as it was last written."""

SCREEN = "screen.log"
"""What a detached job would have shown on a terminal."""

_SOCKET = "socket"
_ELSEWHERE = "socket-at"
"""A file with the path of the socket, where it could not be in the job directory."""

_LONGEST = 103
"""Bytes in a socket's path: 107 on Linux, 103 on macOS."""


def socket_in(folder: Path) -> Path | None:
    """The path for a job's socket in its own directory; None if it is too long for the kernel."""
    path = folder / _SOCKET
    return path if len(os.fsencode(path)) <= _LONGEST else None


def socket_elsewhere(folder: Path) -> Path:
    """A short path for a job's socket, in a directory that only its user can enter and that is made if need be.

    OSError if that is not possible.
    """
    base = home.make_short_folder()
    path = base / f"{folder.name}.socket"
    if len(os.fsencode(path)) > _LONGEST:
        path = base / f"{folder.name[:15]}{folder.name[-5:]}.socket"  # its time and its random end
    return path


def leave_address(folder: Path, path: Path) -> None:
    """Write into the job directory where its socket is."""
    if path.parent != folder:
        (folder / _ELSEWHERE).write_text(str(path))


def address(folder: Path) -> Path | None:
    """Where the socket of a job is; None if there is none any more."""
    path = folder / _SOCKET
    try:
        if not is_trusted(os.stat(folder).st_uid):
            return None
        if os.path.lexists(path):
            return path
        elsewhere = Path(read_regular(folder / _ELSEWHERE, 4096).decode())
    except (OSError, ValueError):
        return None
    # Only where `socket_elsewhere` puts it: this path is connected to and removed.
    return elsewhere if elsewhere.parent == home.short_folder() and "\0" not in elsewhere.name else None


def remove_address(folder: Path) -> None:
    """Remove a socket that no process holds any more, and nothing that is not a socket of this user."""
    path = address(folder)
    try:
        if path is not None and os.path.lexists(path):
            if not _is_own_socket(path):
                return
            path.unlink()
        (folder / _ELSEWHERE).unlink(missing_ok=True)
    except OSError:
        pass  # removed meanwhile, or in a directory of another user


def _is_own_socket(path: Path) -> bool:
    found, base = path.lstat(), path.parent.lstat()
    is_own = found.st_uid == base.st_uid == os.getuid()
    return is_own and stat.S_ISSOCK(found.st_mode) and stat.S_ISDIR(base.st_mode)


def birth(pid: int) -> str:
    """When a process began, in a form that no other process with this id has; empty if there is none.

    An id is unique in one pid namespace of one boot only, so both are part of it.
    """
    # /proc may be that of an outer namespace, in which our own id belongs to another process.
    name = "self" if pid == os.getpid() else str(pid)
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        boot, space = _boot_and_space()
    except OSError:
        return "" if sys.platform == "linux" else _birth_by_ps(pid)
    return "" if fields[0] in (b"Z", b"X") else f"{boot}-{int(fields[19])}-{space}"


def is_hidden(born: str) -> bool:
    """Whether a process with this birth may run in this boot without being visible, in a container with its own ids."""
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
