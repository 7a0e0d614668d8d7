"""A whole benchmark on one rank, in the order given by the controller."""

from __future__ import annotations

from typing import Any

import torch

from . import hardware
from .copies import measure_copies
from .group import Group
from .pairs import measure_pairs
from .timed_operations import OPERATIONS
from .timing import time_call

_BUFFERS = 5
"""Number of buffers of the largest size that an operation may need at once: two of ours, and gloo's copies."""


def measure(
    *, marker: str, backend: str, operations: list[str], sizes: list[int], pairs: bool, call_limit: float | None
) -> None:
    """Measure what the settings describe, and report each result immediately."""
    group = Group(backend, marker)
    hosts: list[int] = group.gather(group.host)
    before = hardware.links()
    _introduce(group)
    room = _room(group)
    names = [name for name in operations if group.size > 1 or name != "send-recv"]
    for position, name in enumerate(names):
        progress = (position * len(sizes), len(names) * len(sizes))
        _measure_operation(group, name, sizes, call_limit, room, progress)
    if pairs and group.size > 1:
        measure_pairs(group, hosts, room)
    copies = measure_copies(group, room)
    after = hardware.links()
    carriers = group.gather(hardware.carriers(before, after))
    for rank, copied in enumerate(copies):
        group.tell("rank", rank=rank, copies=copied, carriers=carriers[rank])
    group.tell("end")
    group.close()


def _introduce(group: Group) -> None:
    mine = {"host": group.host, **hardware.gpu(group.device)}
    cuda: Any = torch.cuda
    version = cuda.nccl.version() if group.backend == "nccl" else ()
    group.tell(
        "world",
        ranks=group.gather(mine),
        backend=group.backend,
        device=group.device.type,
        torch=torch.__version__,
        nccl=".".join(map(str, version)),
    )


def _room(group: Group) -> int:
    """The largest size that fits into half of the free memory on every rank."""
    sharing = 1 if group.device.type == "cuda" else group.local_size
    room = hardware.free_memory(group.device) // (2 * sharing * _BUFFERS)
    rooms = group.gather(room)
    narrowest = min(range(group.size), key=lambda rank: rooms[rank])
    group.tell("room", size=rooms[narrowest], rank=narrowest)
    return rooms[narrowest]


def _measure_operation(
    group: Group, name: str, sizes: list[int], call_limit: float | None, room: int, progress: tuple[int, int]
) -> None:
    """Measure an operation at each size; `progress` is the number of measurements done so far and their total."""
    done, of = progress
    last: tuple[int, float] | None = None
    seen: set[int] = set()
    for number, size in enumerate(sizes):
        if size > room:
            group.tell("left_out", operation=name, size=size, why="memory")
            return
        if last is not None and call_limit and last[1] * size / last[0] > call_limit:
            group.tell("left_out", operation=name, size=size, why="time", seconds=last[1] * size / last[0])
            return
        group.tell("at", what=name, size=size, done=done + number, of=of)
        exercise = OPERATIONS[name](group, size)
        if exercise.size in seen:  # small sizes are rounded up to one element per rank
            continue
        seen.add(exercise.size)
        seconds = time_call(group, exercise.call)
        wrong = sum(group.gather(exercise.check(group.rank)))
        group.tell(
            "row", operation=name, size=exercise.size, count=exercise.count, type="float", seconds=seconds, wrong=wrong
        )
        last = (exercise.size, sorted(seconds)[len(seconds) // 2])
