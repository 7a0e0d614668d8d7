"""The operations of the fused network in plain torch: the definition of each kernel, and its fallback.

Everything is a matrix [pixels, channels]. The `vec` of a normalization is [scale, shift, mean, 1/std] of its batch, so
that relu(x * scale + shift) is its output; `abc` gives the gradient of its input, a*g + b*x + c.

A widening 1x1 convolution (w to 4w channels) and its normalization need no output in memory: c = x W^T is linear in x,
so the sums of the normalization come from x, which is four times smaller. With S = x^T x and s = sum(x), the "gram" of
x, mean(c) = W s / m and var(c) = diag(W cov(x) W^T). Backward, with dc = a*g + b*c + c0 (for each channel) and
G = g^T x: sum(g*c) = sum_k W*G, dW = a*G + b*(W S) + c0 s^T, and dx = g (aW) + x (W^T b W) + a constant.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad

STEM_CHANNELS = 64


class Tile(NamedTuple):
    """How a kernel divides its work: rows, columns of Y, columns of X; warps, pipeline stages, programs per SM."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    per_sm: int
    flat: bool = False


class Sums(NamedTuple):
    """Two sums for each channel in parts [parts, 2, channels]: of x and x*x forward, of g and g*(x-mean) backward."""

    part: Tensor
    parts: int

    def both(self) -> tuple[Tensor, Tensor]:
        """The sums of the parts."""
        first, second = self.part[: self.parts].sum(0)
        return first, second


class Branch(NamedTuple):
    """The inputs of a widening convolution: x, its vec if it is not yet normalized, scaled weight, own vec."""

    x: Tensor
    x_vec: Tensor | None
    weight: Tensor
    vec: Tensor


class InputGradient(NamedTuple):
    """What is needed for the gradient of a widening convolution's input: aW, W^T b W, and the constant."""

    wa: Tensor
    v: Tensor
    shift: Tensor


def full(x: Tensor) -> Tensor:
    """x in a dtype that is suitable for sums."""
    return x.float() if x.dtype == torch.bfloat16 else x


def product(a: Tensor, b: Tensor) -> Tensor:
    """A product that is not rounded to bf16."""
    if a.is_cuda and a.dtype == torch.bfloat16:
        return torch.mm(a, b, out_dtype=torch.float32)
    return full(a) @ full(b)


def activate(x: Tensor, vec: Tensor | None) -> Tensor:
    """relu(x*scale+shift), or x if there is no vec."""
    return x if vec is None else torch.relu(full(x) * vec[0] + vec[1]).to(x.dtype)


def spread(res: Tensor, size: tuple[int, int], count: int) -> Tensor:
    """A residual with one row per pixel; one with fewer rows belongs to the even rows and columns."""
    if len(res) == count:
        return full(res)
    height, width = size
    maps = full(res).new_zeros(count // (height * width), height, width, res.shape[1])
    maps[:, ::2, ::2] = full(res).view(len(maps), (height + 1) // 2, (width + 1) // 2, -1)
    return maps.view(count, -1)


def block_weight(w: Tensor) -> Tensor:
    """The 7x7 weight [64, 3, 7, 7] as the matrix [64, 256] of a 4x4 convolution of blocks."""
    whole = pad(w, (1, 0, 1, 0))  # an 8x8 kernel whose first row and column are zero
    whole = whole.view(STEM_CHANNELS, 3, 4, 2, 4, 2).permute(0, 2, 4, 3, 5, 1).reshape(STEM_CHANNELS, 4, 4, 12)
    return pad(whole, (0, 4)).reshape(STEM_CHANNELS, 256).contiguous()


def pixel_weight(w: Tensor) -> Tensor:
    """The inverse of block_weight, for gradients."""
    whole = w.view(STEM_CHANNELS, 4, 4, 16)[..., :12].view(STEM_CHANNELS, 4, 4, 2, 2, 3)
    return whole.permute(0, 5, 1, 3, 2, 4).reshape(STEM_CHANNELS, 3, 8, 8)[:, :, 1:, 1:]


def update_running(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor, count: int) -> None:
    """Update the running statistics as torch.nn.BatchNorm2d does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(var * (count / (count - 1)), norm.momentum)


class Operations:
    """All operations; tiles describe how a kernel divides its work and are ignored here."""

    # Normalization

    def stats(self, x: Tensor) -> Sums:
        """The sums of every column and of its squares."""
        f = full(x)
        return Sums(torch.stack([f.sum(0), (f * f).sum(0)])[None], 1)

    def finish_forward(self, sums: Sums, norm: nn.BatchNorm2d, count: int) -> Tensor:
        """The vec of a normalization over `count` pixels; its running statistics are updated."""
        total, square = sums.both()
        mean = total / count
        var = (square / count - mean * mean).clamp(min=0)
        rstd = torch.rsqrt(var + norm.eps)
        update_running(norm, mean, var, count)
        scale = norm.weight * rstd
        return torch.stack([scale, norm.bias - mean * scale, mean, rstd])

    def finish_backward(self, sums: Sums, gamma: Tensor, vec: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The abc of a normalization, and the gradients of its weight and bias."""
        total, dot = sums.both()
        dgamma, a = dot * vec[3], gamma * vec[3]
        b = -a * vec[3] * dgamma / count
        return torch.stack([a, b, -a * total / count - b * vec[2]]), dgamma, total

    def apply(self, x: Tensor, vec: Tensor, res: Tensor | None = None, res_vec: Tensor | None = None) -> Tensor:
        """relu(x*scale+shift (+ res (*scale+shift)))."""
        f = full(x) * vec[0] + vec[1]
        if res is not None:
            f += full(res) if res_vec is None else full(res) * res_vec[0] + res_vec[1]
        return torch.relu(f).to(x.dtype)

    def copy_sum(
        self, x: Tensor, vec: Tensor | None = None, half: tuple[int, int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """A copy of x, of relu(x*scale+shift), or of the even rows and columns of its maps [n, h, w]; and its sums."""
        y = activate(x, vec)
        if half is not None:
            y = y.view(*half, -1)[:, ::2, ::2].reshape(-1, x.shape[1])
        return y, full(y).sum(0)

    def reduce(
        self,
        g: Tensor,
        c: Tensor | None = None,
        vec: Tensor | None = None,
        mask: Tensor | None = None,
        res: Tensor | None = None,
        size: tuple[int, int] = (1, 1),
        *,
        keep: bool = False,
    ) -> tuple[Sums, Tensor]:
        """sum(g), and with c and vec sum(g*(c-mean)), of g (+ res) masked by mask > 0 or else by vec's ReLU.

        With `keep` that g is also returned, otherwise the given one.
        """
        whole = g if res is None else (full(g) + spread(res, size, len(g))).to(g.dtype)
        if mask is not None:
            whole = torch.where(mask > 0, whole, 0)
        elif c is not None and vec is not None:
            whole = torch.where(full(c) * vec[0] + vec[1] > 0, whole, 0)
        f = full(whole)
        dot = (f * (full(c) - vec[2])).sum(0) if c is not None and vec is not None else torch.zeros_like(f[0])
        return Sums(torch.stack([f.sum(0), dot])[None], 1), whole if keep else g

    def normalize_backward(self, g: Tensor, c: Tensor, abc: Tensor, vec: Tensor) -> Tensor:
        """dc = a*g + b*c + c0, g masked by the ReLU after the normalization."""
        f = full(c)
        masked = torch.where(f * vec[0] + vec[1] > 0, full(g), 0)
        return (masked * abc[0] + f * abc[1] + abc[2]).to(g.dtype)

    # 1x1 convolutions

    def conv_forward(self, x: Tensor, w: Tensor, tile: Tile, vec: Tensor | None = None) -> tuple[Tensor, Sums]:
        """y = f(x) w^T and its sums; f(x) = relu(x*scale+shift) when vec is given."""
        y = activate(x, vec) @ w.t()
        return y, self.stats(y)

    def conv_backward(
        self,
        g: Tensor,
        c: Tensor,
        x: Tensor,
        w: Tensor,
        tile: Tile,
        abc: Tensor,
        y_vec: Tensor,
        x_vec: Tensor | None,
        res: Tensor,
        size: tuple[int, int],
    ) -> tuple[Tensor, Tensor, Sums]:
        """dx (+ res) masked by x's ReLU, dw (not rounded) and the sums for the normalization before.

        g is the gradient of the output c after normalization and ReLU. A res with fewer rows than x belongs to the
        even rows and columns of x's maps, which have the given size. With x_vec the input is relu(x*scale+shift).
        """
        dy, inputs = self.normalize_backward(g, c, abc, y_vec), activate(x, x_vec)
        dx = torch.where(inputs > 0, product(dy, w) + spread(res, size, len(x)), 0).to(x.dtype)
        f = full(dx)
        dot = torch.zeros_like(f[0]) if x_vec is None else (f * (full(x) - x_vec[2])).sum(0)
        return dx, product(dy.t(), inputs), Sums(torch.stack([f.sum(0), dot])[None], 1)

    def conv_wgrad(self, g: Tensor, x: Tensor, tile: Tile, x_vec: Tensor | None = None) -> Tensor:
        """g^T f(x), not rounded: [columns of g, columns of x]."""
        return product(g.t(), activate(x, x_vec))

    # 1x1 convolutions that widen

    def gram(self, x: Tensor, vec: Tensor | None, tile: Tile) -> Tensor:
        """[S, s] flat, of x or of relu(x*scale+shift); for up to 128 columns."""
        f = activate(x, vec)
        return self.wide_gram(f, full(f).sum(0))

    def wide_gram(self, x: Tensor, total: Tensor) -> Tensor:
        """The same for more columns, for which cuBLAS is faster than a custom kernel; total is sum(x)."""
        return torch.cat([product(x.t(), x).view(-1), total])

    def normalize(self, gram: Tensor, w: Tensor, norm: nn.BatchNorm2d, count: int) -> tuple[Tensor, Tensor]:
        """vec and scaled weight of the normalization after x w^T, from x's gram; updates the running statistics.

        The vec has a fifth row: the shift that fits the scaled weight as it was rounded.
        """
        k, weight = w.shape[1], full(w)
        s = gram[k * k :] / count
        cov = gram[: k * k].view(k, k) / count - s[:, None] * s
        mean, var = weight @ s, ((weight @ cov) * weight).sum(1).clamp(min=0)
        rstd = torch.rsqrt(var + norm.eps)
        update_running(norm, mean, var, count)
        scale = norm.weight * rstd
        scaled = (weight * scale[:, None]).to(w.dtype)
        rows = [scale, norm.bias - mean * scale, mean, rstd, norm.bias - full(scaled) @ s]
        return torch.stack(rows), scaled

    def widen(
        self,
        main: Branch,
        tile: Tile,
        res: Tensor | None = None,
        res_vec: Tensor | None = None,
        second: Branch | None = None,
        following: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Sums | None]:
        """relu(f(x) w^T + shift + residual); with the weight of the following convolution, its output and sums too.

        The residual is res, res normalized by res_vec, or another branch.
        """
        f = product(activate(main.x, main.x_vec), main.weight.t()) + main.vec[4]
        if second is not None:
            f += product(activate(second.x, second.x_vec), second.weight.t()) + second.vec[4]
        elif res is not None:
            f += full(res) if res_vec is None else full(res) * res_vec[0] + res_vec[1]
        y = torch.relu(f).to(main.x.dtype)
        if following is None:
            return y, None, None
        after = y @ following.t()
        return y, after, self.stats(after)

    def widen_backward(
        self, sums: Sums, g: Tensor, w: Tensor, gram: Tensor, vec: Tensor, gamma: Tensor, count: int
    ) -> tuple[InputGradient, Tensor, Tensor, Tensor]:
        """What dx needs, dw, dgamma and dbeta, from sum(g) and G = g^T x (not rounded)."""
        k, weight, total = w.shape[1], full(w), sums.both()[0]
        s, mean = gram[k * k :], gram[k * k :] / count
        dgamma = ((weight * g).sum(1) - vec[2] * total) * vec[3]
        a = gamma * vec[3]
        b = -a * vec[3] * dgamma / count
        # The centered form of the formula above: less is lost where means are large.
        moved = weight @ (gram[: k * k].view(k, k) - s[:, None] * mean)
        dw = a[:, None] * (g - total[:, None] * mean) + b[:, None] * moved
        wa, wb = (weight * a[:, None]).to(w.dtype), (weight * b[:, None]).to(w.dtype)
        v = w.t() @ wb
        # The mean of dx must be zero, as it is after a normalization.
        shift = -(full(wa).t() @ total + full(v).t() @ s) / count
        return InputGradient(wa, v, shift), dw, dgamma, total

    def widen_dgrad(
        self, g: Tensor, d: InputGradient, x: Tensor, x_vec: Tensor | None, tile: Tile, mean: Tensor | None = None
    ) -> tuple[Tensor, Sums | None]:
        """dx; with the mean of x's normalization it is masked by its ReLU and comes with the sums for it."""
        inputs = activate(x, x_vec)
        f = product(g, d.wa) + product(inputs, d.v) + d.shift
        if mean is None:
            return f.to(x.dtype), None
        dx = torch.where(inputs > 0, f, 0).to(x.dtype)
        f = full(dx)
        return dx, Sums(torch.stack([f.sum(0), (f * (full(x) - mean)).sum(0)])[None], 1)

    def wide_dgrad(self, g: Tensor, d: InputGradient, x: Tensor) -> Tensor:
        """The same for many columns, for which cuBLAS is faster."""
        return torch.addmm(d.shift.to(x.dtype), x, d.v).addmm_(g, d.wa)

    # The stem

    def blocks(self, x: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
        """Images [n, 3, h, w], times scale plus shift, as padded blocks of 2x2 pixels [n, h/2+3, w/2+3, 16]."""
        n, _, height, width = x.shape
        whole = pad((x * scale[:, None, None] + shift[:, None, None]).to(dtype), (4, 2, 4, 2))
        cut = whole.view(n, 3, height // 2 + 3, 2, width // 2 + 3, 2).permute(0, 2, 4, 3, 5, 1)
        return pad(cut.reshape(n, height // 2 + 3, width // 2 + 3, 12), (0, 4))

    def stem_forward(self, x: Tensor, w: Tensor, tile: Tile) -> tuple[Tensor, Sums]:
        """c [n*oh*ow, 64] and its sums from blocks and the block weight."""
        c = windows(x) @ w.t()
        return c, self.stats(c)

    def stem_wgrad(self, x: Tensor, dc: Tensor, tile: Tile) -> Tensor:
        """The gradient [64, 3, 7, 7] of the stem's weight."""
        return pixel_weight(product(dc.t(), windows(x)))

    def pool(self, c: Tensor, vec: Tensor, size: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """The raw value of each 3x3 window (stride 2) that is largest after normalization, and its index."""
        n, height, width = size
        flip = torch.where(vec[0] < 0, -1, 1).to(c.dtype)  # normalization keeps or reverses the order
        maps = (c * flip).view(n, height, width, -1).permute(0, 3, 1, 2)
        best, at = max_pool2d(maps, 3, 2, 1, return_indices=True)
        tops, lefts = (2 * torch.arange(length, device=c.device) - 1 for length in best.shape[2:])
        which = (at // width - tops[:, None]) * 3 + at % width - lefts
        q, which = (t.permute(0, 2, 3, 1).reshape(-1, c.shape[1]) for t in (best, which))
        return q * flip, which.to(torch.int8)

    def unpool(self, dq: Tensor, which: Tensor, c: Tensor, abc: Tensor, size: tuple[int, int, int]) -> Tensor:
        """The gradient of c from that of the pooled map (masked by the ReLU) and the normalization's abc."""
        g = torch.zeros_like(full(c)).scatter_add_(0, chosen_pixels(which, size), full(dq))
        return (g * abc[0] + full(c) * abc[1] + abc[2]).to(c.dtype)


def chosen_pixels(which: Tensor, size: tuple[int, int, int]) -> Tensor:
    """The source pixel, in maps of that size, of each value of the pooled map."""
    _, height, width = size
    rows, columns = (height + 1) // 2, (width + 1) // 2
    pooled = torch.arange(len(which), device=which.device)[:, None]
    image, row, column = pooled // (rows * columns), pooled // columns % rows, pooled % columns
    y, x = 2 * row - 1 + which // 3, 2 * column - 1 + which % 3
    return (image * height + y) * width + x


def windows(x: Tensor) -> Tensor:
    """The 4x4 windows of blocks as rows."""
    return x.unfold(1, 4, 1).unfold(2, 4, 1).permute(0, 1, 2, 4, 5, 3).reshape(-1, 256)
