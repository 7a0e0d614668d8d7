"""Which step trains: the fused one where it can run, torch's own elsewhere; the same in all ranks, with the reason."""

# torch is typed in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

import muster

from ..model import Bottleneck, ResNet
from ..step import StepOptions

SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that the kernels' tiles may take: what a multiprocessor of Hopper has."""

PROVEN = (9, 0)
"""The compute capability that the kernels were measured and checked on."""

SMALLEST = 64
"""Pixels: smaller images leave a single pixel to the last normalisation."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Whether the fused step is used, and why not if it is not."""

    fused: bool
    reason: str = ""


def choose(
    wanted: str, model: ResNet, world: muster.World, options: StepOptions, *, image_size: int, compile_wanted: bool
) -> Choice:
    """Decide between `auto`, `plain` and `fused`; a wish for the fused step that cannot be met is an error."""
    if wanted == "plain":
        return Choice(fused=False, reason="--step plain")
    if wanted == "auto" and compile_wanted:
        return Choice(fused=False, reason="--compile is for the plain one")
    mine = obstacle(model, world.device, options, image_size)
    if wanted == "auto" and not mine and torch.cuda.get_device_capability(world.device) != PROVEN:
        mine = "it has been checked on compute capability 9.0 only; --step fused tries it"
    obstacles: list[str] = [""] * world.size
    dist.all_gather_object(obstacles, mine)
    found = next(((rank, each) for rank, each in enumerate(obstacles) if each), None)
    if found is None:
        return Choice(fused=True)
    rank, reason = found
    if wanted == "fused":
        raise muster.UsageError(
            f"the fused step cannot run on rank {rank}: {reason}", hint="--step auto chooses by itself"
        )
    return Choice(fused=False, reason=reason)


def obstacle(model: ResNet, device: torch.device, options: StepOptions, image_size: int) -> str:
    """Return why the fused step cannot train this model here, or nothing."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < PROVEN:
        return "it needs a GPU of compute capability 9.0 or newer"
    if "dtype" not in torch.ops.aten.mm.overloads():
        return f"it needs a newer torch than {torch.__version__}"
    if torch.cuda.get_device_properties(device).shared_memory_per_block_optin < SHARED_MEMORY:
        return "this GPU has too little shared memory for it"
    return network_obstacle(model, options, image_size) or triton_obstacle(device)


def network_obstacle(model: ResNet, options: StepOptions, image_size: int) -> str:
    """Return why the fused step cannot train this model anywhere, or nothing."""
    if options.precision != "bf16":
        return "it computes in bf16"
    if not options.channels_last:
        return "it needs --channels_last"
    if not isinstance(model.layer1[0], Bottleneck):
        return "it is for ResNet-50, -101 and -152"
    if model.conv1.kernel_size != (7, 7):
        return "it has no 3x3 stem"
    if image_size % 8:
        return f"images of {image_size} pixels are no multiple of 8"
    return f"images of {image_size} pixels are smaller than {SMALLEST}" if image_size < SMALLEST else ""


def triton_obstacle(device: torch.device) -> str:
    """Return why Triton cannot run a small kernel here, or nothing."""
    try:
        from .all_kernels import Kernels
    except ImportError:
        return "it needs Triton 3.4 or newer"
    try:
        Kernels().stats(torch.ones(64, 64, device=device, dtype=torch.bfloat16))
        torch.cuda.synchronize(device)
    except Exception as error:  # no C compiler, no room for the cache: whatever it is, the plain step may still run
        return f"Triton does not run here ({str(error).partition(chr(10))[0] or type(error).__name__})"
    return ""
