"""Two losses, with padding as in all published curves and without it, and guided attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .model import Outputs

NEAR = 0.2
"""Distance from the diagonal that guided attention tolerates, as a fraction of the clip; Tachibana's value."""


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


def off_diagonal(alignments: Tensor, text_lengths: Tensor, mel_lengths: Tensor) -> Tensor:
    """Guided attention (Tachibana et al., 2017): the mean over all frames of the attention far from the diagonal.

    It is 0 if the frame in the middle of a clip attends to the symbol in the middle of its text, and so on, and at
    most 1. Unlike theirs, it is a sum over the symbols, so that it does not depend on the length of the text.
    """
    _, frames, symbols = alignments.shape
    time = torch.arange(frames, device=alignments.device) / mel_lengths[:, None]
    place = torch.arange(symbols, device=alignments.device) / text_lengths[:, None]
    cost = 1 - torch.exp((time[:, :, None] - place[:, None]).square() / (-2 * NEAR**2))
    inside = (time < 1).float()
    return ((alignments * cost).sum(2) * inside).sum() / inside.sum()
