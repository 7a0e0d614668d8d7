"""Checkpoints of NVIDIA's training, `checkpoint_Tacotron2_N.pt`, and weights that this recipe writes in that format."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import muster

from .audio import AudioSettings
from .model import ModelSizes, Tacotron2


@dataclass(frozen=True, kw_only=True)
class Original:
    """The contents of such a file."""

    weights: dict[str, Tensor]
    config: dict[str, Any]
    """The arguments of the network, if the file has them."""
    epoch: int | None
    """The last completed epoch, counted from 0."""
    optimizer: dict[str, Any] | None
    audio: dict[str, Any]
    """Audio settings, if this recipe wrote the file; the original does not store them."""


def read_original(path: Path) -> Original:
    """Read a checkpoint of the original, or a plain state dict; raise a UsageError if it cannot be used."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise muster.UsageError(f"{path} does not exist") from None
    except Exception as error:  # a damaged file can fail in any way
        words = str(error).partition("\n")[0]
        raise muster.UsageError(f"cannot read the checkpoint {path}: {words}") from None
    whole: dict[str, Any] = content if isinstance(content, dict) else {}
    weights: Any = whole.get("state_dict", whole)
    if not isinstance(weights, dict) or not {"embedding.weight", "module.embedding.weight"} & weights.keys():
        raise muster.UsageError(f"{path} is not a checkpoint of Tacotron2")
    for name, kind in (("config", dict), ("epoch", int), ("optimizer", dict), ("audio", dict)):
        if not isinstance(whole.get(name), kind | None):
            raise muster.UsageError(f"the checkpoint {path} is damaged: its {name} is {type(whole[name]).__name__}")
    return Original(
        weights={str(name).removeprefix("module."): value for name, value in weights.items()},  # saved through DDP
        config=dict(whole.get("config") or {}),
        epoch=whole.get("epoch"),
        optimizer=whole.get("optimizer"),
        audio=dict(whole.get("audio") or {}),
    )


def sizes_of(original: Original) -> ModelSizes:
    """The sizes of the network in a checkpoint, from its config or else the defaults."""
    known = {field.name for field in fields(ModelSizes)}
    return ModelSizes(**{name: value for name, value in original.config.items() if name in known})


def audio_of(original: Original) -> AudioSettings:
    """The audio settings of a checkpoint, or the defaults if it has none."""
    known = {field.name for field in fields(AudioSettings)}
    return AudioSettings(**{name: value for name, value in original.audio.items() if name in known})


def load_weights(model: Tacotron2, original: Original, path: Path) -> None:
    """Load the weights into a network of the same sizes."""
    try:
        model.load_state_dict(original.weights)
    except RuntimeError as error:
        words = str(error).splitlines()
        detail = words[1].strip() if len(words) > 1 else words[0]
        raise muster.UsageError(f"{path} has a network of different sizes: {detail}") from None


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any], weight_decay: float, path: Path) -> None:
    """Load Adam's state, if it is that of a network with as many parameters."""
    (group,) = optimizer.param_groups
    try:
        if len(saved["state"]) != len(group["params"]):
            return
        # A fused Adam keeps its counts on the GPU, so this must be set before loading.
        changed = {"fused": group["fused"], "weight_decay": weight_decay}
        groups = [{**each, **changed} for each in saved["param_groups"]]
        optimizer.load_state_dict({**saved, "param_groups": groups})
    except Exception:  # a damaged file can fail in any way
        raise muster.UsageError(f"the checkpoint {path} is damaged: its optimizer has no state of Adam") from None


def write_weights(path: Path, model: Tacotron2, epoch: int, audio: AudioSettings) -> None:
    """Atomically write the weights with the keys of the original, and the audio settings."""
    draft = path.with_name(f"{path.name}.draft")
    config = {field.name: getattr(model.sizes, field.name) for field in fields(ModelSizes)}
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    torch.save({"epoch": epoch, "config": config, "state_dict": weights, "audio": asdict(audio)}, draft)
    draft.replace(path)
