"""Ranks as a judge of hangs sees them, for its tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.controller.monitor.observation import Call, Group, Seen
from muster.controller.monitor.stack_text import Frame

TORCH = "/env/lib/python3.12/site-packages/torch/"
C10D = TORCH + "distributed/distributed_c10d.py"
LOADER = TORCH + "utils/data/dataloader.py"
WORKER = TORCH + "utils/data/_utils/worker.py"


def frame(place: str, function: str = "<module>") -> Frame:
    """`train.py:88`, below /home/me; or a whole path."""
    file, _, line = place.rpartition(":")
    return Frame(file=file if file.startswith("/") else f"/home/me/{file}", line=int(line), function=function)


IN_COLLECTIVE = (frame(f"{C10D}:3252", "all_reduce"), frame(f"{TORCH}distributed/c10d_logger.py:83", "wrapper"))


def call(number: int, op: str = "all_reduce", *, over: bool = True, **more: Any) -> Call:
    """A call of a collective on a tensor of 8 floats."""
    return replace(Call(number=number, op=op, over=over, sizes=((8,),), types=("Float",)), **more)


def group(*calls: Call, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Group:
    """The calls of one group of all four ranks."""
    return Group(ranks=ranks, calls=calls)


def waiting(rank: int, number: int = 102, op: str = "all_reduce", *, at: str = "train.py:88", **more: Any) -> Seen:
    """A rank that waits in a collective of the default group, called at a line of the user's."""
    calls = group(call(number - 1), call(number, op, over=False, **more.pop("as_call", {})))
    frames = (*IN_COLLECTIVE, frame(at, "step"))
    return replace(Seen(rank=rank, host=host(rank), quiet=31.0, groups={"0": calls}, frames=frames), **more)


def elsewhere(
    rank: int, number: int = 101, *, at: str = "data.py:33", function: str = "next_batch", **more: Any
) -> Seen:
    """A rank that has finished its last collective and is in the user's code."""
    frames = (frame(at, function), frame("train.py:80", "step"))
    known = {"0": group(call(number))}
    return replace(Seen(rank=rank, host=host(rank), quiet=31.4, groups=known, frames=frames), **more)


def silent(rank: int, **more: Any) -> Seen:
    """A rank whose interpreter did not answer."""
    return replace(Seen(rank=rank, host=host(rank), quiet=32.0, answered=False, begun=101), **more)


def host(rank: int) -> str:
    """Two ranks a host."""
    return "ab"[rank // 2 % 2]


def job(*ranks: Seen) -> Mapping[int, Seen]:
    """By number."""
    return {seen.rank: seen for seen in ranks}
