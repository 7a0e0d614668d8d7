# pyright: basic
"""A Bottleneck ResNet's forward and backward pass out of the kernels in ops.py, linear.py and stem.py, one autograd
node per stage.

Activations are matrices [pixels, channels] in bf16 (channels last). A block keeps x (its input), c1 and c2 (raw
outputs of its first two convolutions) and a1 (normalised c1, which cuDNN's 3x3 convolution reads); the output of
the third convolution and of the shortcut's never reach memory, or only on the way (linear.py). The gradient that
flows between blocks is already masked by the ReLU before it and comes with the sums that the normalisation before
it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import linear, ops, stem
from .ops import Sums, Tile

Size = tuple[int, int, int]  # images, rows, columns
Raw = tuple[Tensor, Tensor]  # the output of a convolution and the vec of its normalisation


class Plan(NamedTuple):
    """Which parts of a stage run in own kernels, and how those are cut; None: cuBLAS and separate normalisation
    kernels.
    """

    first: Tile | None = None  # conv1 of the first block
    conv1: Tile | None = None  # conv1 of the others
    gram: Tile | None = None
    out: Tile | None = None
    joined: bool = False  # conv1 of the next block runs inside out
    wgrad3: Tile | None = None
    dgrad3: Tile | None = None
    back_first: Tile | None = None
    back1: Tile | None = None


PLANS = {
    64: Plan(
        first=Tile(128, 64, 64, 4, 3, 3),
        gram=Tile(128, 0, 0, 4, 3, 2),
        out=Tile(64, 256, 0, 8, 3, 1),
        joined=True,
        wgrad3=Tile(64, 256, 64, 8, 3, 1),
        dgrad3=Tile(64, 256, 0, 8, 3, 1),
        back_first=Tile(64, 0, 64, 4, 3, 2),
        back1=Tile(32, 0, 256, 8, 3, 1),
    ),
    128: Plan(
        first=Tile(64, 128, 256, 8, 3, 1),
        conv1=Tile(64, 128, 64, 4, 4, 2, True),
        gram=Tile(128, 0, 0, 8, 3, 1),
        out=Tile(64, 128, 0, 8, 3, 1),
        wgrad3=Tile(32, 128, 128, 8, 3, 2),
        dgrad3=Tile(128, 64, 0, 8, 3, 1, True),
        back_first=Tile(16, 0, 128, 4, 3, 2),
        back1=Tile(16, 0, 128, 4, 3, 2),
    ),
    256: Plan(out=Tile(64, 128, 0, 8, 3, 1)),
}
STEM_FORWARD = Tile(64, 0, 0, 4, 2, 1)
STEM_WGRAD = Tile(64, 0, 0, 4, 2, 1)


@dataclass
class Unit:
    """A convolution and the normalisation after it, with the bf16 copy of the weight."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    half: Tensor

    @property
    def matrix(self) -> Tensor:
        """The weight of a 1x1 convolution as [outputs, inputs]."""
        return self.half.view(self.half.shape[0], -1)

    def vec(self, sums: Sums, m: int) -> Tensor:
        """[scale, shift, mean, 1/std] of this batch; updates the running statistics."""
        n = self.norm
        assert n.running_mean is not None
        assert n.running_var is not None
        assert n.momentum is not None
        return ops.finish_forward(sums, n.weight, n.bias, n.running_mean, n.running_var, m, n.momentum, n.eps)

    def params(self) -> list[Tensor]:
        """In the order of the gradients."""
        return [self.conv.weight, self.norm.weight, self.norm.bias]


@dataclass
class Block:
    """The units of one Bottleneck."""

    one: Unit
    two: Unit
    three: Unit
    down: Unit | None
    stride: int

    def units(self) -> list[Unit]:
        """All of them, in the order of the gradients."""
        return [self.one, self.two, self.three] + ([self.down] if self.down else [])


@dataclass
class Wide:
    """The input of a widening convolution (normalised when x_vec is given), its gram, and the normalisation's vec."""

    x: Tensor
    x_vec: Tensor | None
    flat: Tensor
    vec: Tensor


@dataclass
class Acts:
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


@dataclass
class Link:
    """Between two stages, in the backward pass: the gradient with its sums."""

    grad: Tensor | None = None
    sums: Sums | None = None


@dataclass
class Stage:
    """One of the four layers, with the stem before the first."""

    blocks: list[Block]
    width: int
    head: Unit | None = None

    def params(self) -> list[Tensor]:
        """Every parameter, in the order of the gradients."""
        units = ([self.head] if self.head else []) + [u for b in self.blocks for u in b.units()]
        return [p for u in units for p in u.params()]

    @property
    def plan(self) -> Plan:
        """The own kernels of this stage."""
        return PLANS.get(self.width, Plan())


def nchw(x: Tensor, size: Size) -> Tensor:
    """The matrix [pixels, channels] as a channels-last image tensor."""
    n, h, w = size
    return x.view(n, h, w, -1).permute(0, 3, 1, 2)


def rows(x: Tensor) -> Tensor:
    """The inverse of nchw."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def conv1x1(x: Tensor, unit: Unit, tile: Tile | None, vec: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A 1x1 convolution of x (of relu(x*scale+shift) when vec is given) and its vec."""
    if tile is None:
        y = x @ unit.matrix.t()
        return y, unit.vec(ops.stats(y), y.shape[0])
    y, sums = ops.conv_forward(x, unit.matrix, tile, vec)
    return y, unit.vec(sums, y.shape[0])


def widen(x: Tensor, vec: Tensor | None, total: Tensor | None, unit: Unit, tile: Tile | None) -> tuple[Wide, Tensor]:
    """Prepares a widening convolution and scales its weight; total: sum of x's columns where cuBLAS makes the gram."""
    if tile:
        flat = linear.make_gram(x, vec, tile)
    else:
        assert total is not None
        flat = linear.wide_gram(x, total)
    v, ws = linear.normalise(flat, unit.matrix, unit.norm, x.shape[0])
    return Wide(x, vec, flat, v), ws


def block_forward(
    b: Block, plan: Plan, x: Tensor, vec: Tensor | None, first: Raw, size: Size, following: Unit | None
) -> tuple[Acts, Tensor, Raw | None]:
    """What to keep, the output, and the next block's c1 and vec where they come with it; first: this block's."""
    s, (c1, v1) = b.stride, first
    a1 = ops.apply(c1, v1)
    c2 = torch.ops.aten.convolution.default(nchw(a1, size), b.two.half, None, [s, s], [1, 1], [1, 1], False, [0, 0], 1)
    out_size = (size[0], c2.shape[2], c2.shape[3])
    c2 = rows(c2)
    v2 = b.two.vec(ops.stats(c2), c2.shape[0])
    if plan.gram:
        three, ws3 = widen(c2, v2, None, b.three, plan.gram)
    else:
        a2, total = ops.copy_sum(c2, v2)
        three, ws3 = widen(a2, None, total, b.three, None)
    down, res, res_vec, second = None, x, None, None
    if b.down and s == 1:  # the first stage, whose plan has all of these
        down, wsd = widen(x, vec, None, b.down, plan.gram)
        res, second = None, (x, vec, wsd, down.vec)
    elif b.down:
        xs, total = ops.copy_sum(x, half=size)
        down, _ = widen(xs, None, total, b.down, None)
        res, res_vec = xs @ b.down.matrix.t(), down.vec
    nxt = None
    if plan.out:
        join = following.matrix if following and plan.joined else None
        y, c1n, sums = linear.out(three.x, three.x_vec, ws3, three.vec, plan.out, res, res_vec, second, join)
        if following and c1n is not None and sums is not None:
            nxt = (c1n, following.vec(sums, c1n.shape[0]))
    else:
        y = ops.apply(three.x @ b.three.matrix.t(), three.vec, res, res_vec)
    return Acts(x, size, c1, v1, a1, c2, v2, three, down, out_size), y, nxt


Grads = dict[Tensor, Tensor]


def norm_backward(u: Unit, sums: Sums, vec: Tensor, m: int, grads: Grads) -> Tensor:
    """abc of one normalisation; its parameters' gradients go into grads."""
    abc, grads[u.norm.weight], grads[u.norm.bias] = ops.finish_backward(sums, u.norm.weight, vec, m)
    return abc


def weight_grad(u: Unit, dw: Tensor, grads: Grads) -> None:
    """Files a weight's gradient in the parameter's type and shape."""
    w = u.conv.weight
    grads[w] = dw.to(w.dtype).view(w.shape) if dw.dim() == 2 else dw.to(w.dtype)


def wide_backward(
    u: Unit, wide: Wide, plan: Plan, gm: Tensor, sums: Sums, grads: Grads, norm: Tensor | None = None
) -> tuple[Tensor, Sums | None]:
    """The gradient of a widening convolution's input; with norm (the vec of its normalisation) masked, with the sums
    for it.
    """
    own = plan.wgrad3 if wide.x.shape[1] <= 128 else None
    g = ops.conv_wgrad(gm, wide.x, own, wide.x_vec) if own else linear.mm32(gm.t(), wide.x)
    d, dw, grads[u.norm.weight], grads[u.norm.bias] = linear.backward(
        sums, g, u.matrix, wide.flat, wide.vec, u.norm.weight, gm.shape[0]
    )
    weight_grad(u, dw, grads)
    if own and plan.dgrad3:
        return linear.dgrad(gm, d, wide.x, wide.x_vec, plan.dgrad3, None if norm is None else norm[2])
    return linear.wide_dgrad(gm, d, wide.x), None


def block_backward(
    b: Block, plan: Plan, a: Acts, gm: Tensor, sums: Sums, vec: Tensor | None, grads: Grads
) -> tuple[Tensor, Sums]:
    """From the masked gradient of the output to that of the input, each with its sums; vec: of the stem, before its
    first block.
    """
    g2, sums2 = wide_backward(b.three, a.three, plan, gm, sums, grads, a.v2)
    if sums2 is None:
        sums2, _ = ops.reduce(g2, a.c2, a.v2)
    dc2 = ops.normalise_backward(g2, a.c2, norm_backward(b.two, sums2, a.v2, g2.shape[0], grads), a.v2)
    s = b.stride
    da1, dw2, _ = torch.ops.aten.convolution_backward.default(
        nchw(dc2, a.out_size),
        nchw(a.a1, a.size),
        b.two.half,
        None,
        [s, s],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, False],
    )
    weight_grad(b.two, dw2, grads)
    g1 = rows(da1)
    sums1, _ = ops.reduce(g1, a.c1, a.v1)
    abc1 = norm_backward(b.one, sums1, a.v1, g1.shape[0], grads)
    res = gm
    if b.down and a.down:
        res, _ = wide_backward(b.down, a.down, plan, gm, sums, grads)
    tile = plan.back_first if b.down else plan.back1
    if tile:
        dx, dw, sums = ops.conv_backward(g1, a.c1, a.x, b.one.matrix, tile, abc1, a.v1, vec, res, a.size[1:])
    else:
        dc1 = ops.normalise_backward(g1, a.c1, abc1, a.v1)
        dw = dc1.t() @ a.x
        sums, dx = ops.reduce(dc1 @ b.one.matrix, mask=a.x, res=res, keep=True, size=a.size[1:])
    weight_grad(b.one, dw, grads)
    return dx, sums


class StageFunction(torch.autograd.Function):
    """One stage; the gradients of all its parameters come out of one backward call."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        stage: Stage,
        size: Size,
        before: Link | None,
        box: list[Any],
        *params: Tensor,
    ) -> Tensor:
        """x: blocks of images for the first stage, else the output of the stage before; box receives the link and the
        size.
        """
        plan, vec = stage.plan, None
        if stage.head:
            n, bh, bw, _ = x.shape
            c0, sums = stem.forward(x, stem.block_weight(stage.head.half), STEM_FORWARD)
            vec = stage.head.vec(sums, c0.shape[0])
            q, which = stem.pool(c0, vec, n, bh - 3, bw - 3)
            ctx.head = (x, c0, which, (n, bh - 3, bw - 3))
            x, size = q, (n, (bh - 2) // 2, (bw - 2) // 2)
        ctx.stage, ctx.before, ctx.vec, ctx.link, ctx.acts = stage, before, vec, Link(), []
        first = conv1x1(x, stage.blocks[0].one, plan.first, vec)
        for i, b in enumerate(stage.blocks):
            following = stage.blocks[i + 1].one if i + 1 < len(stage.blocks) else None
            acts, x, nxt = block_forward(b, plan, x, None if i else vec, first, size, following)
            if following:
                first = nxt or conv1x1(x, following, plan.conv1)
            ctx.acts.append(acts)
            size = acts.out_size
        ctx.save_for_backward(x)
        box[:] = [ctx.link, size]
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        """Gradients of x and of the parameters."""
        stage, link = ctx.stage, ctx.link
        grads: Grads = {}
        if link.grad is not None and link.grad.data_ptr() == g.data_ptr():
            sums = link.sums
        else:
            sums, g = ops.reduce(g.contiguous(), mask=ctx.saved_tensors[0], keep=True)
        link.grad = link.sums = None
        for i in reversed(range(len(ctx.acts))):
            g, sums = block_backward(
                stage.blocks[i], stage.plan, ctx.acts.pop(), g, sums, None if i else ctx.vec, grads
            )
        if stage.head:
            x, c0, which, size = ctx.head
            abc = norm_backward(stage.head, sums, ctx.vec, c0.shape[0], grads)
            grads[stage.head.conv.weight] = stem.wgrad(x, stem.unpool(g, which, c0, abc, *size), STEM_WGRAD)
        else:
            ctx.before.grad, ctx.before.sums = g, sums
        return (None if stage.head else g, None, None, None, None, *(grads[p] for p in stage.params()))


class FusedResNet:
    """Runs a Bottleneck ResNet (torchvision's names) in training mode; its parameters stay the module's own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.halves: list[Tensor] = []
        self.fulls: list[Tensor] = []
        m: Any = model
        self.stages = []
        for i in range(4):
            blocks = [self._block(b) for b in getattr(m, f"layer{i + 1}")]
            self.stages.append(Stage(blocks, 64 << i, self._unit(m.conv1, m.bn1) if i == 0 else None))
        self.fc = (self._half(m.fc.weight), self._half(m.fc.bias))
        self.fc_full = (m.fc.weight, m.fc.bias)

    def _half(self, p: Tensor) -> Tensor:
        layout = torch.channels_last if p.dim() == 4 else torch.contiguous_format
        half = torch.empty_like(p, dtype=torch.bfloat16, memory_format=layout)
        self.halves.append(half)
        self.fulls.append(p)
        return half

    def _unit(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Unit:
        return Unit(conv, norm, self._half(conv.weight))

    def _block(self, b: Any) -> Block:
        down = self._unit(b.downsample[0], b.downsample[1]) if b.downsample is not None else None
        return Block(
            self._unit(b.conv1, b.bn1), self._unit(b.conv2, b.bn2), self._unit(b.conv3, b.bn3), down, b.conv2.stride[0]
        )

    def __call__(self, images: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """Logits in float32 of images [n, 3, h, w]; scale and shift normalise them per channel by the way."""
        with torch.no_grad():
            torch._foreach_copy_(self.halves, [p.detach() for p in self.fulls])  # pyright: ignore
            x = stem.blocks(images, scale, shift)
        link, size = None, (0, 0, 0)
        for stage in self.stages:
            box: list[Any] = []
            x = StageFunction.apply(x, stage, size, link, box, *stage.params())
            link, size = box
        x = x.view(size[0], size[1] * size[2], -1).mean(1)
        return HalfLinear.apply(x, *self.fc, *self.fc_full)


class HalfLinear(torch.autograd.Function):
    """The classifier in bf16, with float32 logits and gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x w^T + b."""
        ctx.save_for_backward(x, w)
        return torch.addmm(b, x, w.t()).float()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        """Gradients of x, weight and bias."""
        x, w = ctx.saved_tensors
        h = g.to(x.dtype)
        return h @ w, None, None, (h.t() @ x).float(), g.sum(0)
