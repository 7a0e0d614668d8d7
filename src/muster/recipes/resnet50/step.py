"""One training step: forward, loss, backward, update, with precision, compilation and DDP.

step = TrainingStep(model, world, StepOptions(), mean=..., std=...)
loss = step(images, labels, weight=batch.weight, rate=0.1)      images: bytes, [N, height, width, 3]
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import muster


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of a step."""

    precision: str = "float32"
    compile: bool = False
    channels_last: bool = True
    accumulate: int = 1
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-5
    label_smoothing: float = 0.0


class Loss(nn.Module):
    """Computes the loss from bytes in one module, so that a compiler sees all of it."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, options: StepOptions, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model, self._options = model, options
        # ToTensor and Normalize in one: (x / 255 - mean) / std
        self.register_buffer("scale", 1 / (255 * torch.tensor(std)).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("shift", -(torch.tensor(mean) / torch.tensor(std)).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over a batch."""
        with self.autocast(images.device):
            return cross_entropy(self.scores(images), labels, label_smoothing=self._options.label_smoothing)

    def scores(self, images: Tensor) -> Tensor:
        """Return the scores of a batch; the caller controls autocast."""
        pixels = images.permute(0, 3, 1, 2)  # bytes are already in channels_last format: nothing is copied
        if not self._options.channels_last:
            pixels = pixels.contiguous()
        normal = pixels * self.scale + self.shift
        return self.model(normal.to(torch.bfloat16) if self._options.precision == "bf16" else normal)

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """The precision of convolutions."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self._options.precision == "bf16")


class TrainingStep:
    """Everything between a batch and the updated weights."""

    def __init__(
        self,
        model: nn.Module,
        world: muster.World,
        options: StepOptions,
        *,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        if options.precision != "float32":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        model.to(world.device, memory_format=layout)  # pyright: ignore[reportCallIssue]
        self.loss = Loss(model, options, mean, std).to(world.device)
        """The module without DDP and compilation, for evaluation."""
        self.optimizer = build_optimizer(model, options)
        self.options = options
        self.connect(world)

    def connect(self, world: muster.World) -> None:
        """Let DDP average the gradients, if there are several ranks, and compile."""
        self._ddp = wrap(self.loss, world) if world.size > 1 else None
        network: Any = self._ddp or self.loss
        self._network = torch.compile(network) if self.options.compile else network

    def __call__(self, images: Tensor, labels: Tensor, *, weight: float, rate: float) -> Tensor:
        """Train on this rank's part of a batch and return its weighted loss."""
        loss = self.gradients(images, labels, weight)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return loss

    def gradients(self, images: Tensor, labels: Tensor, weight: float) -> Tensor:
        """Store the gradients, averaged over the ranks, in the model; return the weighted loss of this rank."""
        for parameter in self.loss.parameters():
            parameter.grad = None
        total = torch.zeros((), device=labels.device)
        seen = 0
        for some, their_labels, share in parts(images, labels, self.options.accumulate):
            seen += len(some)
            with self._without_average() if seen < len(images) else nullcontext():
                loss = self._network(some, their_labels) * (weight * share)
                loss.backward()
            total += loss.detach()
        return total

    def _without_average(self) -> AbstractContextManager[Any]:
        """Accumulate gradients without synchronization until the last part of a batch."""
        return self._ddp.no_sync() if self._ddp else nullcontext()

    def warm_up(self, images: Tensor, labels: Tensor) -> None:
        """Bring DDP into its final state with one batch; nothing is learned from it."""
        muster.warm_up(self.loss, lambda: self.gradients(images, labels, 1.0))

    def trial(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss function of this step on a local copy of the model, independent of other ranks."""
        return copy.deepcopy(self.loss)


def parts(images: Tensor, labels: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Split a batch into `count` parts, or one per image; each comes with its fraction of the whole."""
    count = min(count, len(labels))
    for some, their_labels in zip(images.tensor_split(count), labels.tensor_split(count), strict=True):
        yield some, their_labels, len(some) / len(images)


def wrap(module: nn.Module, world: muster.World) -> DistributedDataParallel:
    """Let DDP average the gradients and nothing else."""
    devices = [world.device.index] if world.device.type == "cuda" else None
    ddp = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
    # Batch statistics are averaged when needed (evaluate.average_buffers), not broadcast in every step. The argument
    # was renamed in torch 2.13; the attribute works with both versions.
    ddp.broadcast_buffers = False
    return ddp


def build_optimizer(model: nn.Module, options: StepOptions) -> torch.optim.Optimizer:
    """SGD or AdamW, without weight decay on biases and normalization."""
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    others = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": others, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    fused = next(model.parameters()).device.type == "cuda"
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, fused=fused)
    nesterov = options.momentum > 0
    return torch.optim.SGD(groups, lr=0.1, momentum=options.momentum, nesterov=nesterov, fused=fused)
