"""Choice of the training step: fused if it can run, otherwise plain torch; the same on all ranks, with the reason.

This is the only place where the rest of the recipe meets the fused step.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

import muster

from ..model import Bottleneck, ResNet
from ..step import StepOptions, TrainingStep
from .fused_step import FusedStep

SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory available to the kernels' tiles: that of a Hopper multiprocessor."""

PROVEN = (9, 0)
"""The compute capability on which the kernels were measured and checked."""

SMALLEST = 64
"""Minimum image size in pixels; smaller images leave a single pixel to the last normalization."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Whether the fused step is used, and the reason if not."""

    fused: bool
    reason: str = ""


def make_step(
    wanted: str,
    model: ResNet,
    world: muster.World,
    options: StepOptions,
    *,
    image_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    compile_wanted: bool = False,
) -> tuple[TrainingStep, str]:
    """Make the step for `auto`, `plain` or `fused`, and describe it."""
    choice = muster.together(
        world, lambda: choose(wanted, model, world, options, image_size=image_size, compile_wanted=compile_wanted)
    )
    if choice.fused:
        return FusedStep(model, world, options, mean=mean, std=std), "fused (custom kernels)"
    how = f"plain{', compiled' if options.compile else ''}, not fused: {choice.reason}"
    return TrainingStep(model, world, options, mean=mean, std=std), how


def choose(
    wanted: str, model: ResNet, world: muster.World, options: StepOptions, *, image_size: int, compile_wanted: bool
) -> Choice:
    """Choose the step for `auto`, `plain` or `fused`; it is an error if `fused` cannot run."""
    if wanted == "plain":
        return Choice(fused=False, reason="--step plain")
    if wanted == "auto" and compile_wanted:
        return Choice(fused=False, reason="--compile applies to the plain step")
    mine = obstacle(model, world.device, options, image_size)
    if wanted == "auto" and not mine and torch.cuda.get_device_capability(world.device) != PROVEN:
        mine = "it was only tested on compute capability 9.0; use --step fused to try it"
    obstacles: list[str] = [""] * world.size
    dist.all_gather_object(obstacles, mine)
    found = next(((rank, each) for rank, each in enumerate(obstacles) if each), None)
    if found is None:
        return Choice(fused=True)
    rank, reason = found
    if wanted == "fused":
        raise muster.UsageError(f"the fused step cannot run on rank {rank}: {reason}", hint="use --step auto")
    return Choice(fused=False, reason=reason)


def obstacle(model: ResNet, device: torch.device, options: StepOptions, image_size: int) -> str:
    """Return why the fused step cannot train this model on this device, or an empty string."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < PROVEN:
        return "it needs a GPU of compute capability 9.0 or newer"
    if "dtype" not in torch.ops.aten.mm.overloads():
        return f"it needs a newer torch than {torch.__version__}"
    if torch.cuda.get_device_properties(device).shared_memory_per_block_optin < SHARED_MEMORY:
        return "this GPU does not have enough shared memory"
    return network_obstacle(model, options, image_size) or triton_obstacle(device)


def network_obstacle(model: ResNet, options: StepOptions, image_size: int) -> str:
    """Return why the fused step cannot train this model on any device, or an empty string."""
    if options.precision != "bf16":
        return "it requires bf16"
    if not options.channels_last:
        return "it needs --channels_last"
    if not isinstance(model.layer1[0], Bottleneck):
        return "it supports only ResNet-50, -101 and -152"
    if model.conv1.kernel_size != (7, 7):
        return "it does not support the 3x3 stem"
    if image_size % 8:
        return f"image size must be a multiple of 8, got {image_size}"
    return f"image size must be at least {SMALLEST}, got {image_size}" if image_size < SMALLEST else ""


def triton_obstacle(device: torch.device) -> str:
    """Return why Triton cannot run a small kernel on this device, or an empty string."""
    try:
        from .all_kernels import Kernels
    except ImportError:
        return "it needs Triton 3.4 or newer"
    try:
        Kernels().stats(torch.ones(64, 64, device=device, dtype=torch.bfloat16))
        torch.cuda.synchronize(device)
    except Exception as error:  # no C compiler, no space for the cache, or anything else: the plain step may still run
        return f"Triton does not work ({str(error).partition(chr(10))[0] or type(error).__name__})"
    return ""
