"""Failing together: an error of one rank ends all of them with one sentence, instead of a hang or a heap of traces."""

# torch is typed in part only.
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
"""Seconds by which the rank that tells an error may be slower than the others, and is still heard."""


def together(world: World, work: Callable[[], Result]) -> Result:
    """Do some work in every rank, such as reading the data, and return what it returns.

    If it raises a MusterError in any rank, all ranks raise that of the lowest one, and only that one tells it. Any
    other exception is a bug and stays where it is.
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
            raise in_all_ranks(error, tells=rank == world.rank)
    return result[0]


def in_all_ranks(error: MusterError, *, tells: bool) -> MusterError:
    """Prepare an error that every rank raises: one tells it, the others leave without a word, and after it.

    Launchers end all ranks as soon as one has left, so the others would take the words out of its mouth.
    """
    error.told = not tells
    if error.told:
        atexit.register(stay_until, time.monotonic() + HEAD_START)
    return error


def stay_until(moment: float) -> None:
    """Hold the end of this process back, if it comes too early; a launcher's SIGTERM or a Ctrl-C still ends it."""
    with suppress(KeyboardInterrupt):
        time.sleep(max(0.0, moment - time.monotonic()))
