"""State that is sharded over the ranks (FSDP2): which tensors are, and where their parts go."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from muster.training.checkpoints import Stateful


def is_sharded(state: Mapping[str, Stateful]) -> bool:
    """Whether a model of this run is sharded; the same on every rank."""
    modules = [part for part in state.values() if isinstance(part, torch.nn.Module)]
    return any(isinstance(each, DTensor) for module in modules for each in module.parameters())


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor from all ranks, if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def mine(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What this rank writes: its parts of sharded tensors, and on rank 0 also what is the same on all ranks."""
    return {name: tensor for name, tensor in tensors.items() if rank == 0 or isinstance(tensor, DTensor)}


def make_targets(entries: Mapping[str, Any], state: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """Return a tensor for each entry of a checkpoint: sharded as this run's model and optimizers are, or on the CPU."""
    like: dict[str, Tensor] = {}
    for name, part in state.items():
        if isinstance(part, torch.nn.Module):
            like |= {f"state.{name}.{key}": value for key, value in part.state_dict().items()}
        elif isinstance(part, torch.optim.Optimizer):
            # An optimizer has no state before its first step, but its tensors are sharded as the parameters are.
            parameters = [each for group in part.param_groups for each in group["params"]]
            prefixes = {f"state.{name}.state.{i}": each for i, each in enumerate(parameters)}
            like |= {key: prefixes[key.rpartition(".")[0]] for key in entries if key.rpartition(".")[0] in prefixes}
    targets: dict[str, Tensor] = {}
    for name, entry in entries.items():
        model = like.get(name)
        if isinstance(model, DTensor) and model.shape == entry.size:
            targets[name] = torch.empty_like(model, dtype=entry.properties.dtype).detach()
        else:
            targets[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    return targets
