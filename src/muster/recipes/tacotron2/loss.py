"""Two losses: the one that every published curve shows, and the one that knows where a clip ends."""

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
    """Means over all frames, padding included: what NVIDIA's training minimises and prints."""
    unpadded: Tensor
    """Means over the frames of the clips: what does not change with the lengths of other clips in the batch."""


def gate_targets(lengths: Tensor, frames: int) -> Tensor:
    """0 while a clip goes on, 1 from its last frame on: [batch, frames]."""
    return (torch.arange(frames, device=lengths.device) >= lengths[:, None] - 1).float()


def losses(outputs: Outputs, mels: Tensor, lengths: Tensor) -> Losses:
    """Compare with the true `mels`, [batch, channels, frames], which are 0 after the end of each clip."""
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
