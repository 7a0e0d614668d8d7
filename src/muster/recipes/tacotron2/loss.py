"""Two losses: the one of all published curves, which includes padding, and one that excludes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .model import Outputs


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Both losses of a batch."""

    reference: Tensor
    """Mean over all frames including padding, which NVIDIA's training minimizes and prints."""
    unpadded: Tensor
    """Mean over the frames of the clips, which does not depend on the lengths of other clips in the batch."""


def gate_targets(lengths: Tensor, frames: int) -> Tensor:
    """0 before the last frame of a clip, 1 from then on: [batch, frames]."""
    return (torch.arange(frames, device=lengths.device) >= lengths[:, None] - 1).float()


def losses(outputs: Outputs, mels: Tensor, lengths: Tensor) -> Losses:
    """Compare with the target `mels`, [batch, channels, frames], which are padded with 0."""
    before = (outputs.mels.float() - mels).square()
    after = (outputs.refined.float() - mels).square()
    targets = gate_targets(lengths, mels.shape[2])
    gates = F.binary_cross_entropy_with_logits(outputs.gates.float(), targets, reduction="none")
    reference = before.mean() + after.mean() + gates.mean()
    inside = (torch.arange(mels.shape[2], device=lengths.device) < lengths[:, None]).float()
    share = inside / inside.sum()
    with torch.no_grad():
        unpadded = ((before + after).mean(1) * share).sum() + (gates * share).sum()
    return Losses(reference=reference, unpadded=unpadded)
