"""Accuracy over all ranks, each test image counted once."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import muster

from .data import TestData
from .step import Loss


@torch.no_grad()
def average_buffers(model: nn.Module, world: muster.World) -> None:
    """Average over all ranks the batch statistics that each collected on its own images."""
    if world.size == 1:
        return
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    flat = torch.cat([buffer.flatten() for buffer in statistics])
    dist.all_reduce(flat)
    flat /= world.size
    for buffer, mean in zip(statistics, flat.split([b.numel() for b in statistics]), strict=True):
        buffer.copy_(mean.view_as(buffer))


@torch.no_grad()
def evaluate(loss: Loss, world: muster.World, data: TestData, part: range, batch_size: int) -> float:
    """Return the fraction of test images that the model classifies correctly; `part` is this rank's part."""
    loss.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=world.device)
    for images, labels in data.test(part, batch_size):
        with loss.autocast(world.device):
            guesses = loss.scores(images).argmax(1)
        counts[0] += (guesses == labels).sum()
        counts[1] += len(labels)
    loss.train()
    dist.all_reduce(counts)
    right, seen = counts.tolist()
    if seen != data.test_length:
        raise muster.MusterError(f"evaluated {seen} test images instead of {data.test_length}")
    return right / seen
