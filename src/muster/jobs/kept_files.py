"""Opening the files of a job directory, which may be damaged, foreign or hostile, without ever blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from muster.errors import MusterError
from muster.text import tilde


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file of this user for reading; OSError for anything else, such as a FIFO, which would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        if not is_trusted(found.st_uid):
            raise PermissionError(f"{path.name} belongs to another user ({_user(found.st_uid)})")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; OSError otherwise."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path.name} is larger than {limit} bytes")
    return data


def is_trusted(uid: int) -> bool:
    """Whether what this user has written is believed: it is ourselves or root, who can do everything anyway."""
    return uid in (os.geteuid(), 0)


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def entries(directory: Path) -> list[str]:
    """The names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def not_written(folder: Path, error: OSError) -> MusterError:
    """The error for a job directory in which nothing can be written."""
    return MusterError(
        f"could not write to {tilde(folder)}: {(error.strerror or str(error)).lower()}",
        hint="free some space there, or set XDG_STATE_HOME to another directory",
    )
