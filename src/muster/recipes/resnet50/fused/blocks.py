"""A Bottleneck's forward and backward pass, made of operations.

A block keeps x (its input), c1 and c2 (raw outputs of its first two convolutions) and a1 (normalized c1, which cuDNN's
3x3 convolution reads); the outputs of the third convolution and of the shortcut never reach memory, or only
temporarily. The gradient between blocks is already masked by the previous ReLU, and comes with the sums that the
previous normalization needs.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .operations import Branch, Operations, Sums, Tile, product
from .plans import Plan

Size = tuple[int, int, int]
"""Number of images, rows and columns."""

Raw = tuple[Tensor, Tensor]
"""The output of a convolution, and the vec of its normalization."""

Grads = dict[Tensor, Tensor]
"""The gradient of each parameter."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A convolution and its normalization, with a copy of the weight in the dtype of the activations."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    weight: Tensor

    @property
    def matrix(self) -> Tensor:
        """The weight of a 1x1 convolution as [outputs, inputs]."""
        return self.weight.view(len(self.weight), -1)

    def parameters(self) -> list[Tensor]:
        """Tensors that have a gradient."""
        return [self.conv.weight, self.norm.weight, self.norm.bias]


@dataclass(frozen=True, kw_only=True)
class Block:
    """The units of one Bottleneck."""

    one: Unit
    two: Unit
    three: Unit
    down: Unit | None
    stride: int

    def units(self) -> list[Unit]:
        """All units."""
        return [self.one, self.two, self.three, *([self.down] if self.down else [])]


@dataclass(frozen=True, kw_only=True)
class Wide:
    """What a widening convolution keeps: its input (normalized by x_vec if there is one), its gram, and its own vec."""

    x: Tensor
    x_vec: Tensor | None
    gram: Tensor
    vec: Tensor


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What one block keeps for its backward pass."""

    x: Tensor
    size: Size
    c1: Tensor
    v1: Tensor
    a1: Tensor
    c2: Tensor
    v2: Tensor
    three: Wide
    down: Wide | None
    out_size: Size


def as_images(x: Tensor, size: Size) -> Tensor:
    """The matrix [pixels, channels] as a channels-last image tensor."""
    return x.view(*size, -1).permute(0, 3, 1, 2)


def as_matrix(x: Tensor) -> Tensor:
    """The inverse of as_images."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The forward passes of the blocks of one stage."""

    ops: Operations
    plan: Plan

    def conv1(self, x: Tensor, unit: Unit, tile: Tile | None, vec: Tensor | None = None) -> Raw:
        """A 1x1 convolution of x (of relu(x*scale+shift) when vec is given) and its vec."""
        if tile is None:
            y = x @ unit.matrix.t()
            sums = self.ops.stats(y)
        else:
            y, sums = self.ops.conv_forward(x, unit.matrix, tile, vec)
        return y, self.ops.finish_forward(sums, unit.norm, len(y))

    def block(
        self, b: Block, x: Tensor, vec: Tensor | None, first: Raw, size: Size, following: Unit | None
    ) -> tuple[Kept, Tensor, Raw | None]:
        """What to keep, the output, and the next block's c1 and vec if they are computed together; first: this block's.

        `vec` is that of the stem, before the very first block.
        """
        ops, plan, (c1, v1) = self.ops, self.plan, first
        a1 = ops.apply(c1, v1)
        image = torch.conv2d(as_images(a1, size), b.two.weight, None, b.stride, 1)
        out_size, c2 = (size[0], image.shape[2], image.shape[3]), as_matrix(image)
        v2 = ops.finish_forward(ops.stats(c2), b.two.norm, len(c2))
        if plan.gram:
            main, three = self._widening(b.three, c2, v2, ops.gram(c2, v2, plan.gram))
        else:
            a2, total = ops.copy_sum(c2, v2)
            main, three = self._widening(b.three, a2, None, ops.wide_gram(a2, total))
        second, down, res, res_vec = None, None, x, None
        if b.down and b.stride == 1 and plan.gram:  # the first stage, whose plan has all kernels
            second, down = self._widening(b.down, x, vec, ops.gram(x, vec, plan.gram))
            res = None
        elif b.down:
            even, total = ops.copy_sum(x, half=size)
            _, down = self._widening(b.down, even, None, ops.wide_gram(even, total))
            res, res_vec = even @ b.down.matrix.t(), down.vec
        kept = Kept(x=x, size=size, c1=c1, v1=v1, a1=a1, c2=c2, v2=v2, three=three, down=down, out_size=out_size)
        if not plan.out:
            return kept, ops.apply(main.x @ b.three.matrix.t(), main.vec, res, res_vec), None
        join = following.matrix if following and plan.joined else None
        y, after, sums = ops.widen(main, plan.out, res, res_vec, second, join)
        if following is None or after is None or sums is None:
            return kept, y, None
        return kept, y, (after, ops.finish_forward(sums, following.norm, len(after)))

    def _widening(self, unit: Unit, x: Tensor, x_vec: Tensor | None, gram: Tensor) -> tuple[Branch, Wide]:
        """The inputs of a widening convolution, and what it keeps."""
        vec, scaled = self.ops.normalize(gram, unit.matrix, unit.norm, len(x))
        return Branch(x, x_vec, scaled, vec), Wide(x=x, x_vec=x_vec, gram=gram, vec=vec)


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The backward passes of the blocks of one stage; the parameters' gradients are stored in `grads`."""

    ops: Operations
    plan: Plan
    grads: Grads

    def block(self, b: Block, a: Kept, g: Tensor, sums: Sums, vec: Tensor | None) -> tuple[Tensor, Sums]:
        """Compute the gradient of the input from the masked gradient of the output, each with its sums.

        `vec` is that of the stem, before the very first block.
        """
        ops, plan = self.ops, self.plan
        g2, sums2 = self._wide(b.three, a.three, g, sums, a.v2)
        if sums2 is None:
            sums2, _ = ops.reduce(g2, a.c2, a.v2)
        dc2 = ops.normalize_backward(g2, a.c2, self.norm(b.two, sums2, a.v2, len(g2)), a.v2)
        s = [b.stride, b.stride]
        image, dw2, _ = torch.ops.aten.convolution_backward.default(
            as_images(dc2, a.out_size), as_images(a.a1, a.size), b.two.weight, None,
            s, [1, 1], [1, 1], False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
        self._weight(b.two, dw2)
        g1 = as_matrix(image)
        sums1, _ = ops.reduce(g1, a.c1, a.v1)
        abc1 = self.norm(b.one, sums1, a.v1, len(g1))
        res = self._wide(b.down, a.down, g, sums)[0] if b.down and a.down else g
        tile = plan.back_first if b.down else plan.back1
        if tile:
            one = b.one.matrix
            dx, dw, sums = ops.conv_backward(g1, a.c1, a.x, one, tile, abc1, a.v1, vec, res, a.size[1:])
        else:
            dc1 = ops.normalize_backward(g1, a.c1, abc1, a.v1)
            dw = dc1.t() @ a.x
            sums, dx = ops.reduce(dc1 @ b.one.matrix, mask=a.x, res=res, size=a.size[1:], keep=True)
        self._weight(b.one, dw)
        return dx, sums

    def norm(self, unit: Unit, sums: Sums, vec: Tensor, count: int) -> Tensor:
        """The abc of one normalization."""
        norm = unit.norm
        abc, self.grads[norm.weight], self.grads[norm.bias] = self.ops.finish_backward(sums, norm.weight, vec, count)
        return abc

    def _weight(self, unit: Unit, dw: Tensor) -> None:
        weight = unit.conv.weight
        self.grads[weight] = dw.to(weight.dtype).view(weight.shape) if dw.ndim == 2 else dw.to(weight.dtype)

    def _wide(
        self, unit: Unit, wide: Wide, g: Tensor, sums: Sums, norm: Tensor | None = None
    ) -> tuple[Tensor, Sums | None]:
        """The gradient of a widening convolution's input; with norm (its vec) masked, with the sums for it."""
        own = self.plan.wgrad3 if wide.x.shape[1] <= 128 else None
        moved = self.ops.conv_wgrad(g, wide.x, own, wide.x_vec) if own else product(g.t(), wide.x)
        d, dw, self.grads[unit.norm.weight], self.grads[unit.norm.bias] = self.ops.widen_backward(
            sums, moved, unit.matrix, wide.gram, wide.vec, unit.norm.weight, len(g)
        )
        self._weight(unit, dw)
        if own and self.plan.dgrad3:
            mean = None if norm is None else norm[2]
            return self.ops.widen_dgrad(g, d, wide.x, wide.x_vec, self.plan.dgrad3, mean)
        return self.ops.wide_dgrad(g, d, wide.x), None
