"""Check that a checkpoint fits the run that loads it; a mismatch is one sentence, and nothing is loaded partially."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from muster.errors import MusterError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from muster.training.checkpoint_folders import Complete
    from muster.training.checkpoints import Stateful


def check_about(complete: Complete, about: Mapping[str, Any]) -> None:
    """Raise an error if the checkpoint was saved with different values of `about`."""
    for name, mine in about.items():
        theirs = complete.about.get(name)
        if theirs != mine:
            raise UsageError(
                f"{complete.folder} was saved with {name} {theirs}, but this run has {name} {mine}",
                hint=f"resume with {name} {theirs}, or start a new run in another directory",
            )


def load_parts(state: Mapping[str, Stateful], saved: Mapping[str, Any], folder: Path) -> None:
    """Load every part of a run, or raise an error about the first that does not fit."""
    import torch

    for name, part in state.items():
        if name not in saved:
            raise UsageError(f"{folder} has no {name}", hint="it may have been saved by another program")
        if isinstance(part, torch.nn.Module):
            difference = compare(saved[name], part.state_dict())
            if difference:
                raise UsageError(
                    f"{folder} has a different {name}: {difference}",
                    hint="resume with the architecture it was saved with",
                )
    for name, part in state.items():
        try:
            part.load_state_dict(saved[name])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            words = str(error).partition("\n")[0]
            raise UsageError(f"the {name} in {folder} does not fit this run: {words}") from None
        if isinstance(part, torch.optim.Optimizer):
            lay_out(part)


def lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer's tensors the memory format of the parameters (channels last), as fused optimizers need.

    A checkpoint stores values and shapes, not strides.
    """
    import torch

    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def compare(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Describe how the weights of two models differ in name or shape; empty if they do not."""
    for name, tensor in wanted.items():
        if name not in saved:
            return f"it has no {name}"
        if saved[name].shape != tensor.shape:
            return f"its {name} is {_size(saved[name])}, but {_size(tensor)} in this run"
    extra = next((name for name in saved if name not in wanted), "")
    return f"it also has {extra}" if extra else ""


def check_finite(step: int, state: Mapping[str, Stateful], parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise an error instead of saving a model with NaN or inf, which would replace good checkpoints."""
    import torch

    from muster.training.sharding import whole

    for name, part in state.items():
        if not isinstance(part, torch.nn.Module):
            continue
        floats = {
            key: value for key, value in cast("dict[str, Tensor]", parts[name]).items() if value.is_floating_point()
        }
        if not floats:
            continue
        finite = torch.stack([whole(value.isfinite().all()) for value in floats.values()]).tolist()
        if not all(finite):
            where = next(key for key, good in zip(floats, finite, strict=True) if not good)
            raise MusterError(
                f"the {name} has NaN or inf values after step {step} ({where}), so it was not saved",
                hint="try a lower learning rate or a longer warmup; --resume continues from the last good checkpoint",
            )


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
