"""Failing together: an error on one rank ends all of them with one message, instead of a hang or many tracebacks."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from muster.errors import MusterError

if TYPE_CHECKING:
    from muster.rank.world.context import World

Result = TypeVar("Result")

HEAD_START = 5.0
"""Seconds that silent ranks wait before they exit, so that the rank that reports the error can finish first."""


def together(world: World, work: Callable[[], Result]) -> Result:
    """Do some work on every rank, such as reading the data, and return its result.

    If it raises a MusterError on any rank, all ranks raise that of the lowest one, and only that rank reports it. Any
    other exception is a bug and stays on its rank.
    """
    import torch.distributed as dist

    result: list[Result] = []
    mine: MusterError | None = None
    try:
        result.append(work())
    except MusterError as error:
        mine = error
    errors: list[MusterError | None] = [None] * world.size
    dist.all_gather_object(errors, mine)
    for rank, error in enumerate(errors):
        if error:
            raise in_all_ranks(error, reports=rank == world.rank)
    return result[0]


def in_all_ranks(error: MusterError, *, reports: bool) -> MusterError:
    """Prepare an error that every rank raises: one reports it, the others exit silently, and after it.

    Launchers end all ranks as soon as one has exited, so the others could cut the report short.
    """
    error.silent = not reports
    if error.silent:
        atexit.register(stay_until, time.monotonic() + HEAD_START)
    return error


def stay_until(moment: float) -> None:
    """Delay the exit of this process until `moment`; a launcher's SIGTERM or Ctrl-C still ends it."""
    with suppress(KeyboardInterrupt):
        time.sleep(max(0.0, moment - time.monotonic()))
