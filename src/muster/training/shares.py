"""Unequal ranks: how many samples of a batch each one takes."""

# torch is typed in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.errors import UsageError

if TYPE_CHECKING:
    from muster.rank.world.context import World


def split(total: int, shares: Sequence[float]) -> list[int]:
    """Divide a number into whole parts as close to the shares as can be; they add up to it exactly.

    Of what rounding down leaves over, those get one more that lost most by it (the largest remainders).
    """
    whole = sum(shares)
    exact = [total * share / whole for share in shares]
    parts = [int(part) for part in exact]
    losers = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in losers[: total - sum(parts)]:
        parts[i] += 1
    return parts


def check_shares(shares: Sequence[float] | None, ranks: int) -> tuple[float, ...]:
    """Return one share for each rank; all the same where none are given."""
    if shares is None:
        return (1.0,) * ranks
    if len(shares) != ranks:
        raise UsageError(
            f"{len(shares)} shares were given for {ranks} ranks",
            hint=f"one share for each rank, such as {','.join(['1'] * ranks)}",
        )
    if not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        given = ",".join(f"{share:g}" for share in shares)
        raise UsageError(f"{given} are no shares", hint="shares are numbers from 0, and one at least is above it")
    return tuple(map(float, shares))


def measure_shares(world: World, work: Callable[[], object], *, seconds: float = 1.0) -> list[float]:
    """Let every rank do the same work over and over, and return the speeds: shares for `muster.Batches`.

    `work` is a training step without its collectives. The first round warms up and is not counted; the others
    run in all ranks at once, since ranks of one host may share its cores.
    """
    import torch
    import torch.distributed as dist

    def finish() -> None:
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)

    work()
    finish()
    dist.barrier()
    start, rounds = time.perf_counter(), 0
    while True:
        work()
        finish()
        rounds += 1
        taken = time.perf_counter() - start
        if taken >= seconds:
            break
    speeds: list[float] = [0.0] * world.size
    dist.all_gather_object(speeds, rounds / taken)
    return speeds
