"""One training step: forward, loss, backward, clipping, Adam, with precision and gradient exchange.

step = TrainingStep(model, world, StepOptions())
losses = step(examples, rate=1e-3, guidance=1.0)
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import muster

from .data import Examples
from .graphs import Graphs
from .loop import fast_decoder
from .loss import Losses, losses, off_diagonal
from .model import Decoder, Outputs, Tacotron2


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of a step."""

    precision: str = "float32"
    decoder: str = "plain"
    """`plain`, or `fast` to move the decoder out of the Python loop."""
    graphs: bool = False
    """Run forward and backward as CUDA graphs."""
    mask_padding: bool = False
    weight_decay: float = 1e-6
    clip: float = 1.0


class TrainingStep:
    """Everything between a batch and the updated weights."""

    def __init__(self, model: Tacotron2, world: muster.World, options: StepOptions) -> None:
        if options.precision != "float32":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
        model.decoder_loop = fast_decoder if options.decoder == "fast" else Decoder.forward
        self.model, self.options, self._world = model.to(world.device), options, world
        self.parameters = list(model.parameters())
        # All gradients are in one tensor: one all-reduce, one norm, one multiplication.
        self._gradients = torch.zeros(sum(p.numel() for p in self.parameters), device=world.device)
        start = 0
        for parameter in self.parameters:
            parameter.grad = self._gradients[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self._guidance = torch.zeros((), device=world.device)  # a tensor, because CUDA graphs keep numbers as they are
        fused = world.device.type == "cuda"
        self._backward = Graphs(self.backward) if options.graphs else self.backward
        self.optimizer = torch.optim.Adam(self.parameters, weight_decay=options.weight_decay, fused=fused)

    def __call__(self, examples: Examples, *, rate: float, guidance: float = 0.0) -> Losses:
        """Train on this rank's part of a batch and return its losses; `guidance` is the weight of guided attention."""
        self._guidance.fill_(guidance)
        both = self._backward(examples)
        if self._world.size > 1:
            dist.all_reduce(self._gradients)
            self._gradients /= self._world.size
        norm = torch.linalg.vector_norm(self._gradients)
        self._gradients *= (self.options.clip / (norm + 1e-6)).clamp(max=1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return both

    def backward(self, examples: Examples) -> Losses:
        """Compute the gradients of a batch in the parameters, and return the losses without guided attention."""
        self._gradients.zero_()
        both, outputs = self.losses(examples)
        astray = off_diagonal(outputs.alignments, examples.text_lengths, examples.mel_lengths)
        (both.reference + self._guidance * astray).backward()
        return Losses(reference=both.reference.detach(), unpadded=both.unpadded)

    def losses(self, examples: Examples) -> tuple[Losses, Outputs]:
        """Run the network forward with the precision of training."""
        lengths = examples.mel_lengths if self.options.mask_padding else None
        with self.autocast():
            outputs = self.model(examples.text, examples.text_lengths, examples.mels, lengths)
        return losses(outputs, examples.mels, examples.mel_lengths), outputs

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of matrix products."""
        bf16 = self.options.precision == "bf16"
        # Without the cache, because a CUDA graph would keep the weights of the step in which it was captured.
        return torch.autocast(self._world.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)


def average_buffers(model: torch.nn.Module, world: muster.World) -> None:
    """Average over all ranks the batch statistics that each collected on its own clips."""
    if world.size == 1:
        return
    floats: list[Tensor] = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    flat = torch.cat([buffer.flatten() for buffer in floats])
    dist.all_reduce(flat)
    flat /= world.size
    for buffer, piece in zip(floats, flat.split([buffer.numel() for buffer in floats]), strict=True):
        buffer.copy_(piece.view_as(buffer))
