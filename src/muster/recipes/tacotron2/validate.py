"""The loss on the validation clips, over all ranks, and an image of one of them."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import muster

from .data import Corpus, Padding, round_up
from .loss import off_diagonal
from .pictures import draw_clip
from .train_step import TrainingStep


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The result of a validation."""

    reference: float
    unpadded: float
    focus: float
    """Sharpness of the attention: the mean of each frame's largest weight, at best 1."""
    diagonal: float
    """Share of the attention that is near the diagonal, at best 1."""


@torch.no_grad()
def validate(
    step: TrainingStep,
    world: muster.World,
    corpus: Corpus,
    *,
    batch_size: int,
    padding: Padding,
    picture: Path | None,
) -> Validation:
    """Return the mean losses over all clips; each rank validates a part of them, and rank 0 draws one.

    Clips of similar length are batched together, as in training, so that there is little padding.
    """
    model = step.model
    model.eval()
    mine = sorted(range(len(corpus)), key=lambda clip: corpus.frames[clip])[world.rank :: world.size]
    sums = torch.zeros(5, dtype=torch.float64, device=world.device)
    for start in range(0, len(mine), batch_size):
        chosen = mine[start : start + batch_size]
        frames = round_up(max(corpus.frames[i] for i in chosen), padding.frames)
        symbols = round_up(max(corpus.symbols[i] for i in chosen), padding.symbols)
        examples = corpus.examples(chosen, symbols, frames)
        both, outputs = step.losses(examples)
        inside = torch.arange(frames, device=world.device) < examples.mel_lengths[:, None]
        focus = outputs.alignments.float().amax(2)[inside].mean()
        diagonal = 1 - off_diagonal(outputs.alignments.float(), examples.text_lengths, examples.mel_lengths)
        found = torch.stack((both.reference, both.unpadded, focus, diagonal, torch.ones_like(focus)))
        sums += found.double() * len(chosen)
        if picture and start == 0 and world.rank == 0:
            length, text = corpus.frames[chosen[-1]], corpus.symbols[chosen[-1]]
            draw_clip(
                picture,
                outputs.alignments[-1, :length, :text],
                outputs.refined[-1, :, :length],
                examples.mels[-1, :, :length],
            )
    model.train()
    if world.size > 1:
        dist.all_reduce(sums)
    reference, unpadded, focus, diagonal = (sums[:4] / sums[4]).tolist()
    return Validation(reference=reference, unpadded=unpadded, focus=focus, diagonal=diagonal)
