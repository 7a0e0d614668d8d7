# pyright: basic
"""The training step of a ResNet: forward, loss, backward and optimizer, in own kernels and as one CUDA graph where
that is possible.

    step = TrainStep(model, Settings(lr=0.1), batch=1024)
    loss = step.run(images, labels)      # a real update of the model's parameters and running statistics

The model stays an ordinary module: evaluate it, save it and load it as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """How to train. mean and std (of numbers from 0 to 1): the images are 0..255, uint8 say, and are normalised on the
    device.

    mode: "fused" (own kernels), "compile", "eager", or "auto", which takes the first of them that can run.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False
    decay_norms: bool = True
    label_smoothing: float = 0.0
    accumulate: int = 1
    bf16: bool = True
    mode: str = "auto"
    graph: bool = True
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


def why_not_fused(model: nn.Module, settings: Settings, image_size: int) -> str | None:
    """The reason why the own kernels cannot run this model here, or None."""
    m: Any = model
    if next(model.parameters()).device.type != "cuda" or torch.cuda.get_device_capability() < (9, 0):
        return "they need a GPU of compute capability 9.0 or newer"
    if not settings.bf16:
        return "they compute in bf16"
    try:
        import triton.tools.tensor_descriptor  # pyright: ignore  # noqa: F401
    except ImportError:
        return "Triton 3.4 or newer is not installed"
    if not all(hasattr(m, n) for n in ("conv1", "bn1", "maxpool", "layer1", "layer4", "fc")) or not hasattr(
        m.layer1[0], "conv3"
    ):
        return "the model is not a ResNet of Bottleneck blocks"
    if m.conv1.kernel_size != (7, 7) or image_size % 8 or not isinstance(m.maxpool, nn.MaxPool2d):
        return "the stem is not a 7x7 convolution with pooling, or the image size is no multiple of 8"
    for mod in model.modules():
        if isinstance(mod, nn.Conv2d) and (mod.groups != 1 or mod.bias is not None):
            return "a convolution has groups or a bias"
        if isinstance(mod, nn.BatchNorm2d) and (mod.momentum is None or not mod.track_running_stats or not mod.affine):
            return "a normalisation has no running statistics, parameters or momentum"
    if any(getattr(m, f"layer{i + 1}")[0].conv1.out_channels != 64 << i for i in range(4)):
        return "the blocks' widths are not 64, 128, 256 and 512"
    return None


class TrainStep:
    """One training step on batches of a fixed size; the first calls run eagerly, then a CUDA graph is recorded and
    replayed.

    after_backward gets the gradients before the optimizer reads them (to average them over processes, say); it
    becomes part of the graph. Batches of another size (the last of an epoch) run too, without the graph.
    """

    WARM_UP = 3

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        batch: int,
        image_size: int = 224,
        image_dtype: torch.dtype = torch.float32,
        after_backward: Callable[[list[Tensor]], None] | None = None,
    ) -> None:
        self.device = next(model.parameters()).device
        self.settings, self.after_backward = settings, after_backward
        self.mode = self._mode(model, image_size)
        self.model = model.to(memory_format=torch.channels_last)  # pyright: ignore
        self.norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.lr = torch.tensor(settings.lr, device=self.device)
        self.optimizer = self._optimizer()
        self.scale, self.shift = self._normaliser()
        self.forward = self._forward()
        self.images = torch.empty(batch, image_size, image_size, 3, device=self.device, dtype=image_dtype).permute(
            0, 3, 1, 2
        )
        self.labels = torch.zeros(batch, device=self.device, dtype=torch.long)
        self.loss = torch.zeros((), device=self.device)
        self.count = 0
        self.eager = self.WARM_UP
        self.graph: torch.cuda.CUDAGraph | None = None

    def _mode(self, model: nn.Module, image_size: int) -> str:
        mode, reason = self.settings.mode, why_not_fused(model, self.settings, image_size)
        if mode == "auto":
            return "fused" if reason is None else "compile" if self.device.type == "cuda" else "eager"
        if mode not in ("fused", "compile", "eager"):
            raise ValueError(f"no mode {mode!r}: choose auto, fused, compile or eager")
        if mode == "fused" and reason is not None:
            raise ValueError(f"the own kernels cannot run this model: {reason}")
        return mode

    def _optimizer(self) -> torch.optim.SGD:
        s = self.settings
        decayed = [p for p in self.parameters if p.dim() > 1 or s.decay_norms]
        others = [p for p in self.parameters if p.dim() <= 1 and not s.decay_norms]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": s.weight_decay}]
        if others:
            groups.append({"params": others, "weight_decay": 0.0})
        cuda = self.device.type == "cuda"
        return torch.optim.SGD(
            groups, lr=self.lr if cuda else s.lr, momentum=s.momentum, nesterov=s.nesterov, fused=cuda
        )

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of the next step (a recorded graph reads it from the device)."""
        self.lr.fill_(lr)
        if self.device.type != "cuda":
            for group in self.optimizer.param_groups:
                group["lr"] = lr

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Loads the optimizer's state; the graph is recorded anew, because it holds the addresses of the old one."""
        self.optimizer.load_state_dict(state)
        lr = float(self.optimizer.param_groups[0]["lr"])
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr if self.device.type == "cuda" else lr
        self.set_lr(lr)
        self.graph, self.eager = None, self.count + 1

    def _normaliser(self) -> tuple[Tensor | None, Tensor | None]:
        s = self.settings
        if s.mean is None or s.std is None:
            return None, None
        mean, std = (torch.tensor(v, device=self.device) for v in (s.mean, s.std))
        return 1.0 / (255.0 * std), -mean / std

    def _forward(self) -> Callable[[Tensor], Tensor]:
        if self.mode == "fused":
            from .fused import FusedResNet

            net = FusedResNet(self.model)
            return lambda x: net(x, self.scale, self.shift)
        model: Any = torch.compile(self.model) if self.mode == "compile" else self.model

        def plain(x: Tensor) -> Tensor:
            if self.scale is not None and self.shift is not None:
                x = x.float() * self.scale[:, None, None] + self.shift[:, None, None]
            x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
                return model(x).float()

        return plain

    def _step(self, images: Tensor, labels: Tensor) -> None:
        """Forward and backward; every settings.accumulate-th time also the optimizer."""
        parts = self.settings.accumulate
        if self.count % parts == 0:
            self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.forward(images), labels, label_smoothing=self.settings.label_smoothing)
        (loss / parts if parts > 1 else loss).backward()
        if (self.count + 1) % parts == 0:
            if self.after_backward:
                self.after_backward([p.grad for p in self.parameters if p.grad is not None])
            self.optimizer.step()
        self.loss.copy_(loss.detach())

    def _record(self) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(self.images, self.labels)
        return graph

    def run(self, images: Tensor, labels: Tensor) -> Tensor:
        """One step; returns the loss on the device, valid until the next call.

        A loader may write into step.images and step.labels itself and pass those: then nothing is copied.
        """
        if not self.model.training:
            self.model.train()
        if (
            self.mode != "fused"
            or not self.settings.graph
            or self.settings.accumulate > 1
            or images.shape != self.images.shape
        ):
            self._step(images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True))
        else:
            if images is not self.images:
                self.images.copy_(images, non_blocking=True)
            if labels is not self.labels:
                self.labels.copy_(labels, non_blocking=True)
            if self.count < self.eager:
                self._aside()
            else:
                self.graph = self.graph or self._record()
                self.graph.replay()
        self.count += 1
        if self.mode == "fused":  # the modules' own forward counts by itself
            torch._foreach_add_([n.num_batches_tracked for n in self.norms], 1)  # pyright: ignore
        return self.loss

    def _aside(self) -> None:
        """An eager step on another stream, as recording demands of the steps before it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(self.images, self.labels)
        torch.cuda.current_stream().wait_stream(side)
