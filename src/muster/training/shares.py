"""Ranks of different speed: how many samples of a batch each one takes."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.errors import UsageError

if TYPE_CHECKING:
    from muster.rank.world.context import World


def split(total: int, shares: Sequence[float]) -> list[int]:
    """Divide a number into integer parts as close to the shares as possible; they add up to it exactly.

    What rounding down leaves over goes to the parts with the largest remainders.
    """
    whole = sum(shares)
    exact = [total * share / whole for share in shares]
    parts = [int(part) for part in exact]
    losers = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in losers[: total - sum(parts)]:
        parts[i] += 1
    return parts


def check_shares(shares: Sequence[float] | None, ranks: int) -> tuple[float, ...]:
    """Return one share for each rank; equal shares by default."""
    if shares is None:
        return (1.0,) * ranks
    if len(shares) != ranks:
        raise UsageError(
            f"got {len(shares)} shares for {ranks} ranks",
            hint=f"give one share per rank, such as {','.join(['1'] * ranks)}",
        )
    if not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        given = ",".join(f"{share:g}" for share in shares)
        raise UsageError(f"invalid shares {given}", hint="shares must be at least 0, and one of them above 0")
    return tuple(map(float, shares))


def measure_shares(world: World, work: Callable[[], object], *, seconds: float = 1.0) -> list[float]:
    """Let every rank repeat the same work, and return the speeds as shares for `muster.Batches`.

    `work` is a training step without its collectives. The first round is a warmup and does not count; the others
    run on all ranks simultaneously, because ranks of one host may share its cores.
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
