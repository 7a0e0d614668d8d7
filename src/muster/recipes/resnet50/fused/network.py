"""A ResNet of Bottleneck blocks whose forward and backward pass use the operations, one autograd node per stage.

The module keeps its parameters and statistics: evaluate, save and load it as usual.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..model import WIDTHS, Bottleneck, ResNet
from .blocks import Backward, Block, Forward, Size, Unit
from .operations import Operations, Sums, block_weight
from .plans import PLANS, STEM, Plan


@dataclass
class Link:
    """The gradient with its sums, passed between two stages in the backward pass."""

    grad: Tensor | None = None
    sums: Sums | None = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One of the four layers, with the stem before the first."""

    ops: Operations
    plan: Plan
    blocks: list[Block]
    stem: Unit | None

    def parameters(self) -> list[Tensor]:
        """Every parameter, in the order of the gradients."""
        units = [*([self.stem] if self.stem else []), *(unit for block in self.blocks for unit in block.units())]
        return [parameter for unit in units for parameter in unit.parameters()]


class StageFunction(torch.autograd.Function):
    """One stage; one backward call computes the gradients of all its parameters."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, stage: Stage, size: Size, before: Link | None, box: list[Any], *parameters: Tensor
    ) -> Tensor:
        """x: blocks of images for the first stage, otherwise the previous stage's output; box gets link and size."""
        ops, vec = stage.ops, None
        if stage.stem:
            n, bh, bw, _ = x.shape
            c0, sums = ops.stem_forward(x, block_weight(stage.stem.weight), STEM)
            vec = ops.finish_forward(sums, stage.stem.norm, len(c0))
            pooled, which = ops.pool(c0, vec, (n, bh - 3, bw - 3))
            ctx.stem = (x, c0, which, (n, bh - 3, bw - 3))
            x, size = pooled, (n, (bh - 2) // 2, (bw - 2) // 2)
        ctx.stage, ctx.before, ctx.vec, ctx.link, ctx.kept = stage, before, vec, Link(), []
        passes = Forward(ops=ops, plan=stage.plan)
        first = passes.conv1(x, stage.blocks[0].one, stage.plan.first, vec)
        for i, block in enumerate(stage.blocks):
            following = stage.blocks[i + 1].one if i + 1 < len(stage.blocks) else None
            kept, x, after = passes.block(block, x, None if i else vec, first, size, following)
            if following:
                first = after or passes.conv1(x, following, stage.plan.conv1)
            ctx.kept.append(kept)
            size = kept.out_size
        ctx.save_for_backward(x)
        box[:] = [ctx.link, size]
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x and of the parameters."""
        stage: Stage = ctx.stage
        passes = Backward(ops=stage.ops, plan=stage.plan, grads={})
        link: Link = ctx.link
        if link.grad is not None and link.sums is not None and link.grad.data_ptr() == g.data_ptr():
            sums = link.sums
        else:
            sums, g = stage.ops.reduce(g.contiguous(), mask=ctx.saved_tensors[0], keep=True)
        link.grad = link.sums = None
        for i in reversed(range(len(stage.blocks))):
            g, sums = passes.block(stage.blocks[i], ctx.kept.pop(), g, sums, None if i else ctx.vec)
        if stage.stem:
            x, c0, which, size = ctx.stem
            abc = passes.norm(stage.stem, sums, ctx.vec, len(c0))
            dc = stage.ops.unpool(g, which, c0, abc, size)
            passes.grads[stage.stem.conv.weight] = stage.ops.stem_wgrad(x, dc, STEM)
        else:
            ctx.before.grad, ctx.before.sums = g, sums
        gradients = (passes.grads[parameter] for parameter in stage.parameters())
        return (None if stage.stem else g, None, None, None, None, *gradients)


class Classifier(torch.autograd.Function):
    """The last layer in the dtype of the activations, with scores and gradients in that of the parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x w^T + b; w and b are copies of weight and bias."""
        ctx.save_for_backward(x, w)
        return torch.addmm(b, x, w.t()).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, weight and bias."""
        x, w = ctx.saved_tensors
        h = g.to(x.dtype)
        return h @ w, None, None, (h.t() @ x).to(g.dtype), g.sum(0)


class FusedResNet:
    """Runs a ResNet of Bottleneck blocks in training mode; activations have the given dtype."""

    def __init__(self, model: ResNet, ops: Operations, dtype: torch.dtype) -> None:
        self._ops, self._dtype = ops, dtype
        self._originals: list[Tensor] = []
        self._copies: list[Tensor] = []
        stem = self._unit(model.conv1, model.bn1)
        layers = (model.layer1, model.layer2, model.layer3, model.layer4)
        self._stages = [
            Stage(
                ops=ops,
                plan=PLANS[width],
                blocks=[self._block(block) for block in cast("Iterable[Bottleneck]", layer)],
                stem=None if i else stem,
            )
            for i, (layer, width) in enumerate(zip(layers, WIDTHS, strict=True))
        ]
        self._classifier = (self._copy(model.fc.weight), self._copy(model.fc.bias), model.fc.weight, model.fc.bias)
        self._counters = [buffer for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")]

    def __call__(self, images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """Return the scores of images [n, 3, h, w], which are first scaled by `scale` and shifted by `shift`."""
        with torch.no_grad():
            torch._foreach_copy_(self._copies, [p.detach() for p in self._originals])
            torch._foreach_add_(self._counters, 1)
            x = self._ops.blocks(images, scale, shift, self._dtype)
        link: Link | None = None
        size: Size = (0, 0, 0)
        for stage in self._stages:
            box: list[Any] = []
            x = cast("Tensor", StageFunction.apply(x, stage, size, link, box, *stage.parameters()))
            link, size = box
        means = x.view(size[0], size[1] * size[2], -1).mean(1)
        return cast("Tensor", Classifier.apply(means, *self._classifier))

    def _copy(self, parameter: Tensor) -> Tensor:
        layout = torch.channels_last if parameter.ndim == 4 else torch.contiguous_format
        copy = torch.empty_like(parameter, dtype=self._dtype, memory_format=layout, requires_grad=False)
        self._originals.append(parameter)
        self._copies.append(copy)
        return copy

    def _unit(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Unit:
        return Unit(conv=conv, norm=norm, weight=self._copy(conv.weight))

    def _block(self, block: Bottleneck) -> Block:
        down = None
        if block.downsample is not None:
            down = self._unit(cast("nn.Conv2d", block.downsample[0]), cast("nn.BatchNorm2d", block.downsample[1]))
        return Block(
            one=self._unit(block.conv1, block.bn1),
            two=self._unit(block.conv2, block.bn2),
            three=self._unit(block.conv3, block.bn3),
            down=down,
            stride=int(block.conv2.stride[0]),
        )
