"""How ranks share the work and the model: DDP, FSDP2 or HSDP, gradient accumulation, and the optimizers."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import math

import torch
import torch._functorch.config as functorch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import muster

from .model import GPT


def parallelize(model: GPT, world: muster.World, args: argparse.Namespace) -> nn.Module:
    """Return the module to call: gradients are averaged over the ranks in its backward pass."""
    if args.compile or (args.compile is None and world.device.type == "cuda"):
        # Below 1, cheap operations are computed again: for GPT-2 a third less memory for 2 % more time.
        functorch.activation_memory_budget = 1.0 if args.recompute == "none" else 0.7
        for block in model.h:  # one by one, so that communication overlaps; torch compiles equal blocks once
            block.compile(dynamic=False)
        model.embed = torch.compile(model.embed, dynamic=False)
        model.normalize = torch.compile(model.normalize, dynamic=False)
    if args.strategy == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True) if world.size > 1 else model
    sizes: list[int] = [0] * world.size
    dist.all_gather_object(sizes, world.local_size)  # if hosts have 8 and 2 ranks, groups of 2 stay within a host
    shard = world.size if args.strategy == "fsdp" else args.shard_ranks or math.gcd(*sizes)
    if world.size % shard:
        raise muster.UsageError(f"{world.size} ranks do not form groups of {shard}", hint="use another --shard_ranks")
    shape = (world.size // shard, shard)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("replicate", "shard"))
    precision = MixedPrecisionPolicy(param_dtype=model.config.precision, reduce_dtype=torch.float32)
    for module in (*model.h, model):
        fully_shard(module, mesh=mesh["shard"] if shard == world.size else mesh, mp_policy=precision)
    return model


def accumulate(module: nn.Module, parts: list[tuple[Tensor, Tensor]], weight: float) -> Tensor:
    """Add up the gradients of the parts of a batch, and return its loss; only the last part communicates."""
    total = torch.zeros((), device=parts[0][0].device)
    for i, (tokens, targets) in enumerate(parts, 1):
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = i == len(parts)
        elif isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(i == len(parts))
        loss = module(tokens, targets) * (weight * len(tokens) / sum(len(each) for each, _ in parts))
        loss.backward()
        total += loss.detach()
    return total


def build_optimizers(model: GPT, args: argparse.Namespace) -> dict[str, torch.optim.Optimizer]:
    """AdamW, or Muon for the matrices of the blocks and AdamW for all else; only matrices decay."""
    matrices = [each for each in model.h.parameters() if each.ndim == 2]
    tables, vectors = [model.wte.weight, model.wpe.weight], [each for each in model.parameters() if each.ndim == 1]
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if args.optimizer == "muon":
        # Updates of AdamW's size, so that both have the same learning rate.
        optimizers["muon"] = torch.optim.Muon(matrices, weight_decay=args.weight_decay, adjust_lr_fn="match_rms_adamw")
        matrices = []
    groups = [
        {"params": matrices + tables, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = model.wte.weight.device.type == "cuda"
    return {"adamw": torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=fused), **optimizers}


def learning_rate(done: float, warmup: float) -> float:
    """The learning rate as a part of the peak, when this part of the run is done: linear, then a cosine down to 0.1."""
    if done < warmup:
        return done / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (done - warmup) / (1 - warmup))
