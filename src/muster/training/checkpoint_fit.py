"""Does a checkpoint fit the run that wants it? Every mismatch is one sentence, and nothing is loaded by halves."""

# torch is typed in part only.
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
    """Refuse the checkpoint of a run that said something else about itself."""
    for name, mine in about.items():
        theirs = complete.about.get(name)
        if theirs != mine:
            raise UsageError(
                f"{complete.folder} was saved with {name} {theirs}, and this run has {name} {mine}",
                hint=f"resume with {name} {theirs}, or begin anew in another folder",
            )


def load_parts(state: Mapping[str, Stateful], saved: Mapping[str, Any], folder: Path) -> None:
    """Load every part of a run, or say which does not fit and why."""
    import torch

    for name, part in state.items():
        if name not in saved:
            raise UsageError(f"{folder} holds no {name}", hint="was it saved by another program?")
        if isinstance(part, torch.nn.Module):
            difference = compare(saved[name], part.state_dict())
            if difference:
                raise UsageError(
                    f"{folder} holds another {name}: {difference}",
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
    """Put the optimizer's tensors into memory as the parameters lie there (channels last), as fused optimizers want it.

    A checkpoint holds numbers and shapes, not strides.
    """
    import torch

    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def compare(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Say how the weights of two models differ in name or shape; nothing if they do not."""
    for name, tensor in wanted.items():
        if name not in saved:
            return f"it has no {name}"
        if saved[name].shape != tensor.shape:
            return f"its {name} is {_size(saved[name])} and this run's is {_size(tensor)}"
    extra = next((name for name in saved if name not in wanted), "")
    return f"it has {extra} too" if extra else ""


def check_finite(step: int, state: Mapping[str, Stateful], parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to save a model that has come to grief: it would push the good checkpoints out."""
    import torch

    for name, part in state.items():
        if not isinstance(part, torch.nn.Module):
            continue
        floats = {
            key: value for key, value in cast("dict[str, Tensor]", parts[name]).items() if value.is_floating_point()
        }
        if not floats:
            continue
        finite = torch.stack([value.isfinite().all() for value in floats.values()]).tolist()
        if not all(finite):
            where = next(key for key, good in zip(floats, finite, strict=True) if not good)
            raise MusterError(
                f"after step {step} the {name} holds values that are not finite ({where}): it is not saved",
                hint="a lower learning rate or a longer warm-up helps; --resume goes on from the last good checkpoint",
            )


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
