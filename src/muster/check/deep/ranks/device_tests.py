"""Tests of a rank's device, then of a process group with real collectives."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import timedelta

import torch

from .world import World, dist

WORTH_IT = 0.05
"""Duration of an all_reduce in seconds above which no larger one is tried."""


def measure_device(world: World) -> dict[str, object]:
    """Measure a matrix product on this rank's device and check its result, which is exact for small integers."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(world.local % torch.cuda.device_count())
    device = torch.device("cuda" if cuda else "cpu")
    name = torch.cuda.get_device_name() if cuda else "CPU"
    n, times, kind = (4096, 20, torch.bfloat16) if cuda else (512, 6, torch.float32)
    left = (torch.arange(n * n, device=device).reshape(n, n) % 3 - 1).to(kind)
    eye = torch.eye(n, device=device, dtype=kind)
    right = bool(torch.equal(left @ eye, left)) and bool(torch.equal(eye @ left, left))
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(times):
            torch.mm(left, left)
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return {"device": name, "flops": 2 * n**3 * times / best, "right": right}


def quick_enough(world: World, times: dict[str, float]) -> bool:
    """Whether to measure the next, larger size; rank 0 decides for all ranks."""
    key = f"next/{len(times)}"
    if world.rank == 0:
        world.store.set(key, "yes" if max(times.values(), default=0.0) < WORTH_IT else "no")
    return world.store.get(key) == b"yes"


def measure_collectives(world: World) -> dict[str, object]:
    """Create a process group as a job does, then time and verify all_reduce at several sizes."""
    cuda = torch.cuda.is_available()
    # Another user could have created a file whose name can be guessed.
    log = tempfile.NamedTemporaryFile("r", prefix="muster-nccl-", errors="replace")  # noqa: SIM115, closed at the end
    if cuda:
        os.environ.setdefault("NCCL_DEBUG", "INFO")
        os.environ.setdefault("NCCL_DEBUG_FILE", log.name)
    store = dist.PrefixStore("group", world.store)
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=world.rank, world_size=world.size, timeout=timedelta(seconds=60)
    )
    times: dict[str, float] = {}
    wrong: list[int] = []
    expected = world.size * (world.size + 1) / 2
    for count in (2, 1 << 18, 1 << 22):
        if not quick_enough(world, times):
            break
        tensor = torch.full((count,), world.rank + 1.0, device="cuda" if cuda else "cpu")
        dist.all_reduce(tensor)
        if not bool(torch.all(tensor == expected)):
            wrong.append(count * 4)
        begin = time.perf_counter()
        for _ in range(3):
            dist.all_reduce(tensor)
        if cuda:
            torch.cuda.synchronize()
        times[str(count * 4)] = (time.perf_counter() - begin) / 3
    dist.destroy_process_group()
    with log:
        lines = [line.partition("Using network ")[2].strip() for line in log if "Using network " in line]
    return {"all_reduce": times, "wrong": wrong, "network": lines[0] if lines else ""}
