"""The limit of open files: raised for the controller, and as it was before for the processes that it starts."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager

from muster.errors import MusterError

_MOST = 1 << 16
"""The limit that is wanted: enough for 20,000 hosts; some systems allow a billion, which slows other programs down."""

_FOR_FILES = 16
"""Descriptors that the controller needs besides its connections: logs, state, clients, and to start a process."""

_usual: list[int] = []
"""The soft limit before it was raised."""


def raise_limit() -> int:
    """Raise the soft limit of this process as far as allowed and useful; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _MOST
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a second limit, below the hard one
        return soft
    _usual[:] = _usual[:1] or [soft]
    return wanted


def require(connections: int) -> None:
    """Raise the limit; MusterError if it is still too low for a job with so many pipes and sockets."""
    limit = raise_limit()
    needed = _lowest_free() + connections + _FOR_FILES
    if needed > limit:
        raise MusterError(
            f"this job needs about {needed} open files on this machine, but the limit is {limit}",
            hint=f"raise it: `ulimit -n {needed}` (if that is not permitted, ask the administrator)",
        )


@contextmanager
def usual_limit() -> Generator[None]:
    """Lower the limit to what it was, for a process that is started now: srun gives it to all ranks of a job.

    A controller that already has more open files than that keeps its own; only ssh clients are started so late.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _usual or _usual[0] >= before[0] or _lowest_free() + _FOR_FILES > _usual[0]:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (_usual[0], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def start_hint(error: OSError, otherwise: str) -> str:
    """What to do if a program could not be started: `otherwise` if that is because of the program."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "this machine allows no more open files: raise `ulimit -n`, or close other programs"
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return "this machine allows no more processes: check `ulimit -u` and its free memory"
    return otherwise


def _lowest_free() -> int:
    """The number that the next descriptor gets."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return _MOST
    os.close(descriptor)
    return descriptor


def usual_soft_limit() -> int:
    """The soft limit before this process raised it."""
    return _usual[0] if _usual else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
