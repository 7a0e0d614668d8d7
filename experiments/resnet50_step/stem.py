# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false
"""The stem of a ResNet (7x7 convolution of stride 2, batch normalisation, ReLU, 3x3 max pooling of stride 2) in
Triton.

The image is cut into blocks of 2x2 pixels, 16 channels each (12 used): then the 7x7 convolution of stride 2 is a
4x4 convolution of stride 1, and the window of one kernel row is 64 neighbouring numbers, which the tensor copy
engine reads as a matrix whose rows overlap. Pooling keeps the raw (not normalised) number that won, so that
normalisation and ReLU happen where it is read, and the sums of the normalisation's gradient need only the pooled
map.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .ops import Sums, Tile, new, programs_for, sum_parts

CHANNELS = 64


@triton.jit
def cut_blocks(x_ptr, y_ptr, scale_ptr, shift_ptr, H, W, sn, sc, sh, sw, BH, BW, NORM: tl.constexpr, BM: tl.constexpr):
    """y[n, i, j, (dy, dx, c)] = x[n, c, 2i+dy-4, 2j+dx-4] (times scale plus shift when NORM), zero outside."""
    row = tl.program_id(0)
    n = row // BH
    i = row % BH
    j = tl.program_id(1) * BM + tl.arange(0, BM)[:, None]
    k = tl.arange(0, 16)[None, :]
    c = k % 3
    y = 2 * i + k // 6 - 4
    x = 2 * j + k // 3 % 2 - 4
    inside = (k < 12) & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    v = tl.load(x_ptr + n.to(tl.int64) * sn + c * sc + y * sh + x * sw, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        v = tl.where(inside, v * tl.load(scale_ptr + c) + tl.load(shift_ptr + c), 0.0)
    tl.store(y_ptr + (row.to(tl.int64) * BW + j) * 16 + k, v.to(tl.bfloat16), mask=j < BW)


@triton.jit
def stem_forward(x_d, w_d, y_d, part_ptr, ROWS, OH, OW, BH, BW, programs, BM: tl.constexpr, STAGES: tl.constexpr):
    """The 4x4 convolution and the sums of its output; a tile is BM pixels of four rows, which share seven rows of
    blocks.
    """
    pid = tl.program_id(0)
    tiles_w = tl.cdiv(OW, BM)
    w0 = w_d.load([0, 0])
    w1 = w_d.load([0, 64])
    w2 = w_d.load([0, 128])
    w3 = w_d.load([0, 192])
    total = tl.zeros([64], tl.float32)
    square = tl.zeros([64], tl.float32)
    for t in tl.range(pid, ROWS // 4 * tiles_w, programs, num_stages=STAGES):
        row = t // tiles_w * 4
        col = t % tiles_w * BM
        at = (row // OH * BH + row % OH) * BW + col
        x0 = tl.trans(x_d.load([at, 0]))
        x1 = tl.trans(x_d.load([at + BW, 0]))
        x2 = tl.trans(x_d.load([at + 2 * BW, 0]))
        x3 = tl.trans(x_d.load([at + 3 * BW, 0]))
        x4 = tl.trans(x_d.load([at + 4 * BW, 0]))
        x5 = tl.trans(x_d.load([at + 5 * BW, 0]))
        x6 = tl.trans(x_d.load([at + 6 * BW, 0]))
        acc = tl.dot(w3, x3, tl.dot(w2, x2, tl.dot(w1, x1, tl.dot(w0, x0))))
        total, square = _stem_row(acc, y_d, row, col, OW, total, square, BM)
        acc = tl.dot(w3, x4, tl.dot(w2, x3, tl.dot(w1, x2, tl.dot(w0, x1))))
        total, square = _stem_row(acc, y_d, row + 1, col, OW, total, square, BM)
        acc = tl.dot(w3, x5, tl.dot(w2, x4, tl.dot(w1, x3, tl.dot(w0, x2))))
        total, square = _stem_row(acc, y_d, row + 2, col, OW, total, square, BM)
        acc = tl.dot(w3, x6, tl.dot(w2, x5, tl.dot(w1, x4, tl.dot(w0, x3))))
        total, square = _stem_row(acc, y_d, row + 3, col, OW, total, square, BM)
    rn = tl.arange(0, 64)
    tl.store(part_ptr + pid * 128 + rn, total)
    tl.store(part_ptr + pid * 128 + 64 + rn, square)


@triton.jit
def _stem_row(acc, y_d, row, col, OW, total, square, BM: tl.constexpr):
    c = acc.to(tl.bfloat16)
    y_d.store([row, col, 0], tl.reshape(tl.trans(c), [1, BM, 64]))
    f = tl.where((col + tl.arange(0, BM))[None, :] < OW, c.to(tl.float32), 0.0)
    return total + tl.sum(f, 1), square + tl.sum(f * f, 1)


@triton.jit
def stem_wgrad(x_d, g_d, pw_ptr, ROWS, OH, OW, BH, BW, programs, BM: tl.constexpr, STAGES: tl.constexpr):
    """Partial gradients [64, 256] of the 4x4 convolution's weight."""
    pid = tl.program_id(0)
    tiles_w = tl.cdiv(OW, BM)
    a0 = tl.zeros([64, 64], tl.float32)
    a1 = tl.zeros([64, 64], tl.float32)
    a2 = tl.zeros([64, 64], tl.float32)
    a3 = tl.zeros([64, 64], tl.float32)
    for t in tl.range(pid, ROWS // 4 * tiles_w, programs, num_stages=STAGES):
        row = t // tiles_w * 4
        col = t % tiles_w * BM
        at = (row // OH * BH + row % OH) * BW + col
        g0 = tl.trans(tl.reshape(g_d.load([row, col, 0]), [BM, 64]))
        g1 = tl.trans(tl.reshape(g_d.load([row + 1, col, 0]), [BM, 64]))
        g2 = tl.trans(tl.reshape(g_d.load([row + 2, col, 0]), [BM, 64]))
        g3 = tl.trans(tl.reshape(g_d.load([row + 3, col, 0]), [BM, 64]))
        x0 = x_d.load([at, 0])
        x1 = x_d.load([at + BW, 0])
        x2 = x_d.load([at + 2 * BW, 0])
        x3 = x_d.load([at + 3 * BW, 0])
        x4 = x_d.load([at + 4 * BW, 0])
        x5 = x_d.load([at + 5 * BW, 0])
        x6 = x_d.load([at + 6 * BW, 0])
        a0 = tl.dot(g3, x3, tl.dot(g2, x2, tl.dot(g1, x1, tl.dot(g0, x0, a0))))
        a1 = tl.dot(g3, x4, tl.dot(g2, x3, tl.dot(g1, x2, tl.dot(g0, x1, a1))))
        a2 = tl.dot(g3, x5, tl.dot(g2, x4, tl.dot(g1, x3, tl.dot(g0, x2, a2))))
        a3 = tl.dot(g3, x6, tl.dot(g2, x5, tl.dot(g1, x4, tl.dot(g0, x3, a3))))
    r = tl.arange(0, 64)
    at = pw_ptr + pid * 16384 + r[:, None] * 256 + r[None, :]
    tl.store(at, a0)
    tl.store(at + 64, a1)
    tl.store(at + 128, a2)
    tl.store(at + 192, a3)


@triton.jit
def pool_forward(c_ptr, q_ptr, i_ptr, s_ptr, P, OH, OW, PH, PW, BM: tl.constexpr):
    """q = the raw number whose normalised value is the largest of its 3x3 window, i = which of the nine it was.

    Normalisation keeps the order, or turns it round where the scale is negative.
    """
    pid = tl.program_id(0)
    p = pid * BM + tl.arange(0, BM)
    rc = tl.arange(0, 64)
    pw = p % PW
    ph = p // PW % PH
    n = (p // (PW * PH)).to(tl.int64)
    flip = tl.where(tl.load(s_ptr + rc) < 0, -1.0, 1.0)[None, :]
    best = tl.full([BM, 64], float("-inf"), tl.float32)
    for k in tl.static_range(9):
        y = 2 * ph - 1 + k // 3
        x = 2 * pw - 1 + k % 3
        inside = (p < P) & (y >= 0) & (y < OH) & (x >= 0) & (x < OW)
        at = (y * OW + x)[:, None] * 64 + rc[None, :]
        c = (
            tl.load(c_ptr + n[:, None] * (OH * OW * 64) + at, mask=inside[:, None], other=float("-inf")).to(tl.float32)
            * flip
        )
        key = (c.to(tl.int32, bitcast=True) | (8 - k)).to(tl.float32, bitcast=True)  # a bf16 leaves sixteen bits free
        best = tl.maximum(best, tl.where(inside[:, None], key, float("-inf")))
    bits = best.to(tl.int32, bitcast=True)
    raw = (bits & -65536).to(tl.float32, bitcast=True) * flip
    which = (8 - (bits & 15)).to(tl.int8)
    at = p.to(tl.int64)[:, None] * 64 + rc[None, :]
    tl.store(q_ptr + at, raw.to(tl.bfloat16), mask=(p < P)[:, None])
    tl.store(i_ptr + at, which, mask=(p < P)[:, None])


@triton.jit
def pool_backward(q_ptr, i_ptr, c_ptr, dc_ptr, a_ptr, b_ptr, c0_ptr, OH, OW, PH, PW, BM: tl.constexpr):
    """dC = a*g + b*c + c0 with g = the sum of the pooled gradients q whose window this pixel won.

    A program has rows 2i-1 and 2i; each pair of columns 2j-1, 2j needs the windows i-1, i and j-1, j.
    """
    n = tl.program_id(0) // (PH + 1)
    i = tl.program_id(0) % (PH + 1)
    j = tl.program_id(1) * BM + tl.arange(0, BM)
    rc = tl.arange(0, 64)
    base = n.to(tl.int64) * (PH * PW * 64)
    q, k = _window(q_ptr + base, i_ptr + base, i, j, rc, PH, PW)
    ql, kl = _window(q_ptr + base, i_ptr + base, i, j - 1, rc, PH, PW)
    qu, ku = _window(q_ptr + base, i_ptr + base, i - 1, j, rc, PH, PW)
    qd, kd = _window(q_ptr + base, i_ptr + base, i - 1, j - 1, rc, PH, PW)
    a = tl.load(a_ptr + rc)[None, :]
    b = tl.load(b_ptr + rc)[None, :]
    c0 = tl.load(c0_ptr + rc)[None, :]
    base = n.to(tl.int64) * (OH * OW * 64)
    g = tl.where(k == 4, q, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i, 2 * j, rc, OH, OW)
    g = tl.where(k == 3, q, 0.0) + tl.where(kl == 5, ql, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i, 2 * j - 1, rc, OH, OW)
    g = tl.where(k == 1, q, 0.0) + tl.where(ku == 7, qu, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i - 1, 2 * j, rc, OH, OW)
    g = tl.where(k == 0, q, 0.0) + tl.where(kl == 2, ql, 0.0) + tl.where(ku == 6, qu, 0.0) + tl.where(kd == 8, qd, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i - 1, 2 * j - 1, rc, OH, OW)


@triton.jit
def _window(q_ptr, i_ptr, i, j, rc, PH, PW):
    at = (i * PW + j)[:, None] * 64 + rc[None, :]
    there = ((i >= 0) & (i < PH) & (j >= 0) & (j < PW))[:, None]
    return tl.load(q_ptr + at, mask=there, other=0.0).to(tl.float32), tl.load(i_ptr + at, mask=there, other=-1).to(
        tl.int32
    )


@triton.jit
def _unpooled(c_ptr, dc_ptr, g, a, b, c0, y, x, rc, OH, OW):
    at = (y * OW + x)[:, None] * 64 + rc[None, :]
    there = ((y >= 0) & (y < OH) & (x >= 0) & (x < OW))[:, None]
    c = tl.load(c_ptr + at, mask=there, other=0.0).to(tl.float32)
    tl.store(dc_ptr + at, (g * a + c * b + c0).to(tl.bfloat16), mask=there)


def blocks(x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """Images [n, 3, h, w] of any type and layout as padded blocks [n, h/2+3, w/2+3, 16], normalised by the way if
    asked.
    """
    n, c, h, w = x.shape
    if c != 3 or h % 8 or w % 2:
        raise ValueError(
            f"images of shape {tuple(x.shape)}: the fused stem needs 3 channels, a height of eights and an even width"
        )
    bh, bw = h // 2 + 3, w // 2 + 3
    y = new(x, n, bh, bw, 16)
    v = [y, y] if scale is None or shift is None else [scale, shift]
    cut_blocks[(n * bh, triton.cdiv(bw, 128))](
        x, y, *v, h, w, *x.stride(), bh, bw, NORM=scale is not None, BM=128, num_warps=4
    )
    return y


def block_weight(w: Tensor) -> Tensor:
    """The 7x7 weight [64, 3, 7, 7] as the matrix [64, 256] of the 4x4 convolution of blocks."""
    full = torch.nn.functional.pad(w, (1, 0, 1, 0))  # an 8x8 kernel whose first row and column are zero
    full = full.view(CHANNELS, 3, 4, 2, 4, 2).permute(0, 2, 4, 3, 5, 1).reshape(CHANNELS, 4, 4, 12)
    return torch.nn.functional.pad(full, (0, 4)).reshape(CHANNELS, 256).contiguous()


def pixel_weight(w: Tensor) -> Tensor:
    """The inverse of block_weight, for gradients."""
    full = w.view(CHANNELS, 4, 4, 16)[..., :12].view(CHANNELS, 4, 4, 2, 2, 3)
    return full.permute(0, 5, 1, 3, 2, 4).reshape(CHANNELS, 3, 8, 8)[:, :, 1:, 1:]


def _windows(x: Tensor, bm: int) -> TensorDescriptor:
    return TensorDescriptor(x, [x.numel() // 16 - 3, 64], [16, 1], [bm, 64])


def forward(x: Tensor, w: Tensor, tile: Tile) -> tuple[Tensor, Sums]:
    """c [n*oh*ow, 64] and its sums from blocks and the block weight."""
    n, bh, bw, _ = x.shape
    oh, ow = bh - 3, bw - 3
    programs = programs_for(n * oh // 4 * -(-ow // tile.bm), 1, 1, tile.per_sm)
    y = new(x, n * oh, ow, CHANNELS)
    part = new(x, programs, 2, CHANNELS, dtype=torch.float32)
    stem_forward[(programs,)](
        _windows(x, tile.bm),
        TensorDescriptor.from_tensor(w, [CHANNELS, 64]),
        TensorDescriptor.from_tensor(y, [1, tile.bm, CHANNELS]),
        part,
        n * oh,
        oh,
        ow,
        bh,
        bw,
        programs,
        BM=tile.bm,
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return y.view(-1, CHANNELS), Sums(part, programs)


def wgrad(x: Tensor, dc: Tensor, tile: Tile) -> Tensor:
    """The gradient [64, 3, 7, 7] of the stem's weight."""
    n, bh, bw, _ = x.shape
    oh, ow = bh - 3, bw - 3
    programs = programs_for(n * oh // 4 * -(-ow // tile.bm), 1, 1, tile.per_sm)
    pw = new(x, programs, CHANNELS * 256, dtype=torch.float32)
    g = dc.view(n * oh, ow, CHANNELS)
    stem_wgrad[(programs,)](
        _windows(x, tile.bm),
        TensorDescriptor.from_tensor(g, [1, tile.bm, CHANNELS]),
        pw,
        n * oh,
        oh,
        ow,
        bh,
        bw,
        programs,
        BM=tile.bm,
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return pixel_weight(sum_parts(pw))


def pool(c: Tensor, vec: Tensor, n: int, oh: int, ow: int, bm: int = 16) -> tuple[Tensor, Tensor]:
    """q [n*ph*pw, 64] and which pixel of each window it is."""
    ph, pw = (oh + 1) // 2, (ow + 1) // 2
    p = n * ph * pw
    q, which = new(c, p, CHANNELS), new(c, p, CHANNELS, dtype=torch.int8)
    pool_forward[(triton.cdiv(p, bm),)](c, q, which, vec[0], p, oh, ow, ph, pw, BM=bm, num_warps=4)
    return q, which


def unpool(dq: Tensor, which: Tensor, c: Tensor, abc: Tensor, n: int, oh: int, ow: int, bm: int = 16) -> Tensor:
    """The gradient of c from that of the pooled map (masked by the ReLU) and the normalisation's abc."""
    dc = torch.empty_like(c)
    ph, pw = (oh + 1) // 2, (ow + 1) // 2
    pool_backward[(n * (ph + 1), triton.cdiv(pw + 1, bm))](
        dq, which, c, dc, abc[0], abc[1], abc[2], oh, ow, ph, pw, BM=bm, num_warps=4
    )
    return dc
