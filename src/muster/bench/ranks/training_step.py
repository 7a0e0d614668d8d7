"""The training step of `muster bench --scaling`: the throughput of a plain network with DDP on synthetic data."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .group import Group
from .timing import block

SECONDS = 0.5
"""Duration of one block of steps, in seconds."""

BLOCKS = 5
"""Number of blocks; their median is not affected by a moment of other load."""

_WARM_UP = 5
_WIDTH = 1024


def train(*, backend: str, batch_size: int) -> None:
    """Train for a few seconds and print the samples per second of all ranks together."""
    group = Group(backend, "")
    layers = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(4)]
    model = DistributedDataParallel(
        nn.Sequential(*layers, nn.Linear(_WIDTH, 10)).to(group.device), process_group=group.measured
    )
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(batch_size, _WIDTH, device=group.device)
    labels = torch.randint(10, (batch_size,), device=group.device)

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    block(group, step, _WARM_UP)  # DDP rebuilds its buckets after the first step
    (some,) = group.slowest([block(group, step, _WARM_UP)])
    steps = max(3, round(SECONDS * _WARM_UP / max(some, 1e-6)))
    seconds = median(group.slowest([block(group, step, steps) for _ in range(BLOCKS)]))
    if group.rank == 0:
        print(f"{group.size * batch_size * steps / seconds:.1f} samples/s", flush=True)
    group.close()
