"""How ranks share the work and the model: DDP, FSDP2 or HSDP, gradient accumulation, and the optimizers."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import muster

from .model import GPT


def parallelize(model: GPT, world: muster.World, args: argparse.Namespace) -> nn.Module:
    """Return the module to call: gradients are averaged over the ranks in its backward pass."""
    if args.compile:  # by block, so that communication overlaps; torch compiles equal blocks once
        import torch._functorch.config as functorch

        # Below 1, cheap operations are computed again instead of kept: for GPT-2 a third less memory for 2 % of time.
        functorch.activation_memory_budget = 0.7
        for block in (*model.h, model.ln_f):
            block.compile(dynamic=False)
    if args.strategy == "ddp":
        if world.size == 1:
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    kind, shard = world.device.type, args.shard_ranks or world.local_size
    if args.strategy == "fsdp":
        mesh = init_device_mesh(kind, (world.size,))
    elif world.size % shard:
        text = f"--strategy hsdp needs groups of equal size, but {world.size} ranks are not a multiple of {shard}"
        raise muster.UsageError(text, hint="give the ranks per group with --shard_ranks, or use --strategy fsdp")
    else:
        mesh = init_device_mesh(kind, (world.size // shard, shard), mesh_dim_names=("replicate", "shard"))
    precision = MixedPrecisionPolicy(param_dtype=model.config.precision, reduce_dtype=torch.float32)
    for module in (*model.h, model):
        fully_shard(module, mesh=mesh, mp_policy=precision)
    return model


def accumulate(module: nn.Module, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Add up the gradients of some parts of a batch; only the last one communicates."""
    total = torch.zeros((), device=parts[0][0].device)
    for i, (tokens, targets) in enumerate(parts):
        last = i == len(parts) - 1
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = last
        elif isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(last)
        loss = module(tokens, targets) / len(parts)
        loss.backward()
        total += loss.detach()
    return total


def build_optimizers(model: GPT, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """AdamW, or Muon for the matrices of the blocks and AdamW for all else; only matrices decay."""
    matrices = [each for each in model.h.parameters() if each.ndim == 2]
    tables, vectors = [model.wte, model.wpe], [each for each in model.parameters() if each.ndim == 1]
    muon: list[Any] = []
    if args.optimizer == "muon":
        # Updates of AdamW's size, so that both have the same learning rate.
        muon = [torch.optim.Muon(matrices, weight_decay=args.weight_decay, adjust_lr_fn="match_rms_adamw")]
        matrices = []
    groups = [{"params": matrices + tables}, {"params": vectors, "weight_decay": 0.0}]
    fused = model.wte.device.type == "cuda"
    return [torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=args.weight_decay, fused=fused), *muon]


def learning_rate(step: int, *, steps: int, warmup: int, lowest: float) -> float:
    """The learning rate of a step as a part of the peak: a linear warmup, then a cosine down to `lowest`."""
    warmup = min(warmup, steps // 10)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
