"""Gradients of a batch through the fused network, on a GPU as one CUDA graph per batch shape."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

import muster

from ..model import ResNet
from ..step import Loss, StepOptions, parts
from .network import FusedResNet
from .operations import Operations

Result = tuple[Tensor, list[Tensor]]
"""A loss and the gradient of each parameter; those of a graph are valid until it runs again."""


def operations_for(device: torch.device) -> Operations:
    """Kernels on a GPU, or in Triton's interpreter if that is enabled; otherwise plain torch."""
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        from .all_kernels import Kernels

        return Kernels()
    return Operations()


class FusedLoss:
    """The loss of a batch through the fused network, with the parameters of `loss`."""

    def __init__(self, loss: Loss, options: StepOptions) -> None:
        model = loss.model
        assert isinstance(model, ResNet)
        weight = model.conv1.weight
        dtype = torch.bfloat16 if options.precision == "bf16" else weight.dtype
        self._network = FusedResNet(model, operations_for(weight.device), dtype)
        self._scale, self._shift = loss.scale.flatten(), loss.shift.flatten()
        self._label_smoothing = options.label_smoothing

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over a batch of bytes [N, height, width, 3]."""
        scores = self._network(images.permute(0, 3, 1, 2), self._scale, self._shift)
        return cross_entropy(scores, labels, label_smoothing=self._label_smoothing)


class FusedGradients:
    """Stores the gradients of a batch in the parameters, averaged over the ranks."""

    def __init__(self, loss: Loss, world: muster.World, options: StepOptions) -> None:
        self._loss, self._world, self._accumulate = FusedLoss(loss, options), world, options.accumulate
        self._parameters = list(loss.model.parameters())
        self._weight = torch.ones((), device=world.device, dtype=self._parameters[0].dtype)
        self._backward = Graphs(self.backward) if world.device.type == "cuda" else self.backward
        self._flat: Tensor | None = None
        if world.size > 1:  # as DDP does
            for tensor in loss.model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def __call__(self, images: Tensor, labels: Tensor, weight: float) -> Tensor:
        """Return the loss of this rank's part of a batch, times its weight."""
        total = torch.zeros((), device=labels.device, dtype=self._weight.dtype)
        gradients: list[Tensor] = []
        for some, their_labels, share in parts(images, labels, self._accumulate):
            self._weight.fill_(weight * share)
            loss, new = self._backward(some, their_labels)
            total += loss
            if share == 1:
                gradients = new
            elif not gradients:
                gradients = [gradient.clone() for gradient in new]
            else:
                torch._foreach_add_(gradients, new)
        if self._world.size > 1:
            gradients = self._average(gradients)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        return total

    def backward(self, images: Tensor, labels: Tensor) -> Result:
        """Return the weighted loss of a batch and its gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._loss(images, labels) * self._weight
        loss.backward()
        return loss.detach(), [p.grad for p in self._parameters if p.grad is not None]

    def _average(self, gradients: list[Tensor]) -> list[Tensor]:
        """The mean over the ranks, as one message."""
        if self._flat is None:
            self._flat = torch.empty(
                sum(g.numel() for g in gradients), device=gradients[0].device, dtype=gradients[0].dtype
            )
        views: list[Tensor] = []
        start = 0
        for gradient in gradients:
            views.append(self._flat.as_strided(gradient.shape, gradient.stride(), start))
            start += gradient.numel()
        torch._foreach_copy_(views, gradients)
        self._flat /= self._world.size
        dist.all_reduce(self._flat)
        return views


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One graph, the batch that it reads and what it writes."""

    graph: Any
    images: Tensor
    labels: Tensor
    result: Result


class Graphs:
    """Calls `work` with a batch: directly if its shape is new, as a captured graph from then on.

    The first calls compile kernels and let libraries choose theirs, which is not possible during capture. All graphs
    share one memory pool, so each overwrites what the previous one left there.
    """

    WARM_UP = 3

    def __init__(self, work: Callable[[Tensor, Tensor], Result]) -> None:
        self._work = work
        self._calls: dict[torch.Size, int] = {}
        self._captured: dict[torch.Size, Captured] = {}
        self._pool: Any = None

    def __call__(self, images: Tensor, labels: Tensor) -> Result:
        """Do the work."""
        shape = images.shape
        calls = self._calls[shape] = self._calls.get(shape, 0) + 1
        if calls <= self.WARM_UP:
            return self._aside(images, labels)
        if shape not in self._captured:
            self._captured[shape] = self._capture(images, labels)
        captured = self._captured[shape]
        captured.images.copy_(images)
        captured.labels.copy_(labels)
        captured.graph.replay()
        return captured.result

    def _aside(self, images: Tensor, labels: Tensor) -> Result:
        """Run on another stream, as required before a capture."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            result = self._work(images, labels)
        here.wait_stream(aside)
        return result

    def _capture(self, images: Tensor, labels: Tensor) -> Captured:
        images, labels = images.clone(), labels.clone()
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # otherwise the memory of the first calls would add to that of the pool
        # thread_local: nccl's watchdog may query its events in another thread meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = self._work(images, labels)
        self._pool = graph.pool()
        return Captured(graph=graph, images=images, labels=labels, result=result)
