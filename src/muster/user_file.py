"""Reads a file that a user named, which may be anything: a pipe, a terminal, a device without an end."""

from __future__ import annotations

import errno
import os
import select
import time
from os import PathLike

LIMIT = 5.0
"""Seconds for a pipe, such as that of `<(command)`, to deliver everything."""

MOST_BYTES = 4 << 20


def read_user_file(path: str | PathLike[str] | int, *, limit: float = LIMIT, most: int = MOST_BYTES) -> bytes:
    """Return the content; OSError if it does not end within `limit` seconds or `most` bytes, ValueError for a NUL.

    A number is an open descriptor, which is read from where it stands: /dev/stdin would fail for a socket.
    """
    pieces: list[bytes] = []
    deadline = time.monotonic() + limit
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.dup(path) if isinstance(path, int) else os.open(path, flags)
    try:
        ready = select.poll()  # not select(), which fails for descriptors above 1023
        ready.register(descriptor, select.POLLIN)
        while True:
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"no end within {limit:g} s", str(path))
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            if len(pieces) << 16 > most and sum(map(len, pieces)) > most:
                raise OSError(errno.EFBIG, f"larger than {most >> 20} MB", str(path))
    finally:
        os.close(descriptor)
