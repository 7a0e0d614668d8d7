"""`muster.warm_up`: bring DDP into its final state before the first step, so that a resumed run repeats every bit."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.training import rng

if TYPE_CHECKING:
    from torch import nn


def warm_up(model: nn.Module, work: Callable[[], object]) -> None:
    """Run `work`, a forward and backward pass of a DDP model, and discard everything it changed in the model.

    In its first step DDP groups the gradients differently than in all later ones, and with more than two ranks the
    groups decide in which order gradients are added. After a warmup every step is like the later ones, so that a
    resumed run ends with exactly the weights of a run that was never interrupted. Call it on all ranks, before
    `Checkpoints.begin`. With one or two ranks it does nothing.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() <= 2:
        return
    generators = rng.capture()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    work()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    rng.restore(generators)
