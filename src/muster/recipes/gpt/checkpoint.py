"""Sharded checkpoints: each rank writes and reads its part; any number of ranks resumes them, with any strategy."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import muster


def complete(root: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first; one that is being written has another name."""
    return sorted(root.glob("step-" + "[0-9]" * 8))


def read(folder: Path, tensors: dict[str, Any]) -> None:
    """Read tensors, however they were sharded and are now."""
    try:
        dcp.load(tensors, checkpoint_id=folder)
    # A damaged file can fail in any way; torch wraps the error in a BaseException.
    except (Exception, dcp.CheckpointException) as error:
        raise muster.MusterError(f"cannot read {folder}: {cause(error)}", hint=f"remove it: rm -r {folder}") from None


def read_rest(folder: Path) -> dict[str, Any]:
    """Return what else was saved: `about` the model, and the position in `batches`."""
    try:
        rest = json.loads((folder / "rest.json").read_text(encoding="utf-8"))
        return {name: dict(rest[name]) for name in ("about", "batches")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise muster.MusterError(f"cannot read {folder}: {cause(error)}", hint=f"remove it: rm -r {folder}") from None


def cause(error: BaseException) -> str:
    """The first line of an error, or of the one inside torch's CheckpointException."""
    failures: dict[int, Any] = getattr(error, "failures", {})
    inner = next((each[0] for each in failures.values()), error)
    return str(inner).partition("\n")[0] or type(inner).__name__


def load(folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Load the model and the optimizers."""
    model, states = get_state_dict(module, optimizers)
    read(folder, {"model": model, "optimizers": states})
    set_state_dict(module, optimizers, model_state_dict=model, optim_state_dict=states)


def save(folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer], rest: object, keep: int) -> None:
    """Write a checkpoint; once it is complete it gets its name, and all but the newest `keep` are removed."""
    draft = folder.with_suffix(".draft")
    model, states = get_state_dict(module, optimizers)
    try:
        dcp.save({"model": model, "optimizers": states}, checkpoint_id=draft)
        if torch.distributed.get_rank() == 0:
            (draft / "rest.json").write_text(json.dumps(rest), encoding="utf-8")
            draft.rename(folder)
            for old in complete(folder.parent)[:-keep]:
                shutil.rmtree(old)
    except (Exception, dcp.CheckpointException) as error:
        raise muster.MusterError(f"cannot write {folder}: {cause(error)}", hint="is the disk full?") from None
