"""Copy rates of memory on each host, and to and from each GPU, which a single rank can measure."""

from __future__ import annotations

import time
from statistics import median

import torch

from .group import Group
from .timed_operations import WIDTH

SIZE = 1 << 28
"""Bytes per copy: larger than the caches of CPUs and GPUs."""

_TIMES = 5


def measure_copies(group: Group, largest: int) -> list[dict[str, float]]:
    """Bytes per second of each rank's copies; the ranks of a host take turns because they share its memory."""
    mine: dict[str, float] = {}
    count = max(1, min(SIZE, largest) // WIDTH)
    for turn in range(max(group.gather(group.local_size))):
        if turn == group.local_rank:
            mine = _copies(group, count)
        group.barrier()
    return group.gather(mine)


def _copies(group: Group, count: int) -> dict[str, float]:
    here = torch.zeros(count, dtype=torch.float32)
    if group.device.type == "cpu":
        return {"memory": _rate(group, here, torch.zeros_like(here))}
    pinned, there = here.pin_memory(), group.zeros(count)
    return {
        "to_gpu": _rate(group, pinned, there),
        "from_gpu": _rate(group, there, pinned),
        "in_gpu": _rate(group, there, torch.zeros_like(there)),
    }


def _rate(group: Group, source: torch.Tensor, target: torch.Tensor) -> float:
    times: list[float] = []
    for _ in range(_TIMES + 1):
        group.settle()
        start = time.perf_counter()
        target.copy_(source)
        group.settle()
        times.append(time.perf_counter() - start)
    return len(source) * WIDTH / median(times[1:])
