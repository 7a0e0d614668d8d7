"""Sharded checkpoints: each rank writes and reads its part; any number of ranks resumes them, with any strategy."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import muster


def newest(root: Path) -> Path | None:
    """Return the newest complete checkpoint; one that is being written has another name."""
    return max(root.glob("step-" + "[0-9]" * 8), default=None)


def read_about(folder: Path) -> dict[str, Any]:
    """Return what is needed to build the model and to continue: `step`, `fixed` and `merges`."""
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        return {
            "step": int(about["step"]),
            "fixed": dict(about["fixed"]),
            "merges": [(a, b) for a, b in about["merges"]],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(folder, error) from None


def load(folder: Path, state: dict[str, Any]) -> None:
    """Read a checkpoint into tensors of any sharding."""
    try:
        dcp.load(state, checkpoint_id=folder)
    # A damaged file can fail in any way; torch wraps the error in a BaseException.
    except (Exception, dcp.CheckpointException) as error:
        raise unreadable(folder, error) from None


def unreadable(folder: Path, error: BaseException) -> muster.MusterError:
    """What to say about a damaged checkpoint."""
    return muster.MusterError(f"cannot read {folder}: {cause(error)}", hint=f"to use the one before: rm -r {folder}")


def cause(error: BaseException) -> str:
    """The first line of an error, or of the one inside torch's CheckpointException."""
    failures: dict[int, Any] = getattr(error, "failures", {})
    inner = next((each[0] for each in failures.values()), error)
    return str(inner).partition("\n")[0] or type(inner).__name__


class Checkpoints:
    """The checkpoints of a run; `fixed` must be the same in a run that resumes it."""

    def __init__(
        self,
        root: Path,
        world: muster.World,
        module: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        *,
        fixed: Mapping[str, Any],
        merges: Sequence[tuple[int, int]],
        keep: int,
    ) -> None:
        self._root, self._world, self._module, self._optimizers = root, world, module, optimizers
        self._fixed, self._merges, self._keep = dict(fixed), merges, keep

    def begin(self, *, resume: bool) -> int:
        """Load the newest checkpoint, if any, and return its step."""
        return muster.together(self._world, lambda: self._begin(resume))

    def _begin(self, resume: bool) -> int:
        folder = newest(self._root)
        if folder is None:
            return 0
        if not resume:
            raise muster.UsageError(
                f"{self._root} already has checkpoints", hint="continue with --resume, or choose another --out"
            )
        about = read_about(folder)
        for name, mine in self._fixed.items():
            theirs = about["fixed"].get(name)
            if theirs != mine:
                raise muster.UsageError(
                    f"{folder} was saved with {name} {theirs}, but this run has {mine}",
                    hint=f"resume with {name} {theirs}, or choose another --out",
                )
        model, optimizers = get_state_dict(self._module, self._optimizers)
        state = {"model": model, "optimizers": optimizers}
        load(folder, state)
        set_state_dict(self._module, self._optimizers, model_state_dict=model, optim_state_dict=optimizers)
        return about["step"]

    def save(self, step: int) -> None:
        """Write a checkpoint; it gets its name when all of it is on disk, and only then older ones are removed."""
        muster.together(self._world, lambda: self._save(step))

    def _save(self, step: int) -> None:
        folder = self._root / f"step-{step:08d}"
        draft = folder.with_suffix(".draft")
        model, optimizers = get_state_dict(self._module, self._optimizers)
        try:
            dcp.save({"model": model, "optimizers": optimizers}, checkpoint_id=draft)
            if self._world.rank == 0:
                about = {"step": step, "ranks": self._world.size, "fixed": self._fixed, "merges": self._merges}
                (draft / "about.json").write_text(json.dumps(about), encoding="utf-8")
                draft.rename(folder)
                for old in sorted(self._root.glob("step-" + "[0-9]" * 8))[: -self._keep]:
                    shutil.rmtree(old)
        except (Exception, dcp.CheckpointException) as error:
            raise muster.MusterError(
                f"cannot write {folder}: {cause(error)}", hint="check for a full disk; earlier checkpoints are intact"
            ) from None
