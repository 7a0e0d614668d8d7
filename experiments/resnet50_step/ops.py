# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false
"""Launchers of the kernels in kernels.py: shapes, tiles and buffers; everything is a matrix [pixels, channels] in
bf16.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from . import kernels as k


class Tile(NamedTuple):
    """How a kernel cuts its work: rows, columns of Y, columns of X; warps, pipeline stages, programs per SM."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    per_sm: int
    flat: bool = False


class Sums(NamedTuple):
    """Partial sums [parts, 2, channels] of one normalisation."""

    part: Tensor
    parts: int


@functools.cache
def sm_count() -> int:
    """Multiprocessors of the device (the interpreter counts as four)."""
    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 4


def new(like: Tensor, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """An empty tensor where like is."""
    return torch.empty(shape, device=like.device, dtype=dtype)


def programs_for(m: int, bm: int, columns: int, per_sm: int) -> int:
    """How many programs share the rows."""
    return max(1, min(-(-m // bm), sm_count() * per_sm // columns))


def _desc(t: Tensor, rows: int, cols: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(t, [rows, cols])


def conv_forward(x: Tensor, w: Tensor, tile: Tile, vec: Tensor | None = None) -> tuple[Tensor, Sums]:
    """y = f(x) w^T and its sums; f(x) = relu(x*scale+shift) when vec is given."""
    (m, kk), n = x.shape, w.shape[0]
    bm, bn, bk, warps, stages, per_sm, flat = tile
    bn, bk = min(bn, n), min(bk, kk)
    programs = programs_for(m, bm, n // bn, per_sm)
    y = new(x, m, n)
    part = new(x, programs, 2, n, dtype=torch.float32)
    v = (gone(part, kk), gone(part, kk)) if vec is None else (vec[0], vec[1])
    k.conv1x1_forward[(programs * (n // bn),)](
        _desc(x, bm, bk),
        _desc(w, bn, bk),
        _desc(y, bm, bn),
        part,
        *v,
        m,
        n,
        kk,
        programs,
        PRO=vec is not None,
        STREAM=bk == kk,
        EVEN=m % bm == 0,
        FLAT=flat,
        BM=bm,
        BN=bn,
        BK=bk,
        STAGES=stages,
        num_warps=warps,
        num_stages=stages,
    )
    return y, Sums(part, programs)


def gone(t: Tensor, size: int) -> Tensor:
    """A vector to read where a kernel does not use it: numbers of t, or new ones when it is too short."""
    flat = t.view(-1)
    return flat if flat.numel() >= size else new(t, size, dtype=torch.float32)


def conv_backward(
    g: Tensor,
    c: Tensor,
    x: Tensor,
    w: Tensor,
    tile: Tile,
    abc: Tensor,
    y_vec: Tensor,
    x_vec: Tensor | None = None,
    res: Tensor | None = None,
    size: tuple[int, int] = (1, 1),
) -> tuple[Tensor, Tensor, Sums]:
    """dx masked by x's ReLU, dw (float32) and the sums for the normalisation before; for few columns of g.

    A res with fewer rows than x belongs to the even rows and columns of x's maps, which have the given size.
    With x_vec the input is relu(x*scale+shift), and the sums include those with x.
    """
    (m, n), kk = g.shape, x.shape[1]
    bm, _, bk, warps, stages, per_sm, _ = tile
    bk = min(bk, kk)
    programs = programs_for(m, bm, kk // bk, per_sm)
    dx = torch.empty_like(x)
    pw = new(x, programs, n * kk, dtype=torch.float32)
    ps = new(x, programs, 2, kk, dtype=torch.float32)
    xs, xh, mean = (abc[0], abc[0], abc[0]) if x_vec is None else (x_vec[0], x_vec[1], x_vec[2])
    mode = _residual(res, x)
    k.conv1x1_backward[(programs * (kk // bk),)](
        _desc(g, bm, n),
        _desc(c, bm, n),
        _desc(x, bm, bk),
        _desc(w, n, bk),
        _desc(res if res is not None and mode == 1 else x, bm, bk),
        _desc(dx, bm, bk),
        x if res is None else res,
        pw,
        ps,
        abc[0],
        abc[1],
        abc[2],
        y_vec[0],
        y_vec[1],
        xs,
        xh,
        mean,
        m,
        kk,
        *size,
        programs,
        PRO_X=x_vec is not None,
        RES=mode,
        DOT=x_vec is not None,
        EVEN=m % bm == 0,
        BM=bm,
        N=n,
        BK=bk,
        STAGES=stages,
        num_warps=warps,
    )
    return dx, sum_parts(pw).view(n, kk), Sums(ps, programs)


def _residual(res: Tensor | None, x: Tensor) -> int:
    return 0 if res is None else 1 if res.shape[0] == x.shape[0] else 2


def conv_wgrad(g: Tensor, x: Tensor, tile: Tile, x_vec: Tensor | None = None) -> Tensor:
    """g^T f(x) in float32, [columns of g, columns of x]."""
    (m, n), kk = g.shape, x.shape[1]
    bm, bn, bk, warps, stages, per_sm, _ = tile
    bn, bk = min(bn, n), min(bk, kk)
    tiles = (n // bn) * (kk // bk)
    splits = programs_for(m, bm, tiles, per_sm)
    pw = new(x, splits, n * kk, dtype=torch.float32)
    v = (pw, pw) if x_vec is None else (x_vec[0], x_vec[1])
    k.conv1x1_wgrad[(tiles * splits,)](
        _desc(g, bm, bn),
        _desc(x, bm, bk),
        pw,
        *v,
        m,
        n,
        kk,
        splits,
        PRO_X=x_vec is not None,
        EVEN=m % bm == 0,
        BM=bm,
        BN=bn,
        BK=bk,
        STAGES=stages,
        num_warps=warps,
    )
    return sum_parts(pw).view(n, kk)


def sum_parts(part: Tensor) -> Tensor:
    """The sum over the first dimension, in a fixed order."""
    parts, size = part.shape
    if parts == 1:
        return part[0]
    out = new(part, size, dtype=torch.float32)
    k.sum_parts[(triton.cdiv(size, 128),)](part, out, size, parts, BP=16, BC=128, num_warps=4)
    return out


def finish_forward(
    sums: Sums, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, m: int, momentum: float, eps: float
) -> Tensor:
    """[scale, shift, mean, 1/std] of a normalisation over m pixels; mean and var are updated in place."""
    c = gamma.numel()
    vec = new(gamma, 4, c, dtype=torch.float32)
    k.finish_forward[(c // 16,)](
        sums.part, gamma, beta, vec, mean, var, c, sums.parts, m, momentum, eps, BP=64, BC=16, num_warps=4
    )
    return vec


def finish_backward(sums: Sums, gamma: Tensor, vec: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """abc, dgamma, dbeta."""
    c = gamma.numel()
    abc = new(gamma, 3, c, dtype=torch.float32)
    dgamma, dbeta = new(gamma, c, dtype=torch.float32), new(gamma, c, dtype=torch.float32)
    k.finish_backward[(c // 16,)](
        sums.part, gamma, vec, abc, dgamma, dbeta, c, sums.parts, m, BP=64, BC=16, num_warps=4
    )
    return abc, dgamma, dbeta


def _block(c: int, elements: int) -> tuple[int, int]:
    bc = min(c, 256)
    return elements // bc, bc


def stats(x: Tensor, per_sm: int = 1, elements: int = 8192) -> Sums:
    """The sums of every column and of its squares."""
    m, c = x.shape
    bm, bc = _block(c, elements)
    programs = programs_for(m, bm, c // bc, per_sm)
    part = new(x, programs, 2, c, dtype=torch.float32)
    k.bn_stats[(programs, c // bc)](x, part, m, c, programs, BM=bm, BC=bc, num_warps=4)
    return Sums(part, programs)


def apply(
    x: Tensor, vec: Tensor, res: Tensor | None = None, res_vec: Tensor | None = None, elements: int = 2048
) -> Tensor:
    """relu(x*scale+shift (+ res (*scale+shift)))."""
    m, c = x.shape
    bm, bc = _block(c, elements)
    y = torch.empty_like(x)
    v2 = vec if res_vec is None else res_vec
    k.bn_apply[(triton.cdiv(m, bm), c // bc)](
        x,
        x if res is None else res,
        y,
        vec[0],
        vec[1],
        v2[0],
        v2[1],
        m,
        c,
        RES=0 if res is None else 1 if res_vec is None else 2,
        BM=bm,
        BC=bc,
        num_warps=4,
    )
    return y


def copy_sum(
    x: Tensor,
    vec: Tensor | None = None,
    half: tuple[int, int, int] | None = None,
    per_sm: int = 2,
    elements: int = 4096,
) -> tuple[Tensor, Tensor]:
    """A copy of x, of relu(x*scale+shift), or of the even rows and columns of its maps [n, h, w]; and the sums of its
    columns.
    """
    m, c = x.shape
    h, w = (1, 1) if half is None else half[1:]
    m = m if half is None else half[0] * ((h + 1) // 2) * ((w + 1) // 2)
    bm, bc = _block(c, elements)
    programs = programs_for(m, bm, c // bc, per_sm)
    y = new(x, m, c)
    part = new(x, programs, c, dtype=torch.float32)
    v = (gone(part, c), gone(part, c)) if vec is None else (vec[0], vec[1])
    k.copy_sum[(programs, c // bc)](
        x, y, part, *v, m, c, h, w, programs, PRO=vec is not None, HALF=half is not None, BM=bm, BC=bc, num_warps=4
    )
    return y, sum_parts(part)


def reduce(
    g: Tensor,
    c: Tensor | None = None,
    vec: Tensor | None = None,
    mask: Tensor | None = None,
    res: Tensor | None = None,
    keep: bool = False,
    size: tuple[int, int] = (1, 1),
    per_sm: int = 1,
    elements: int = 8192,
) -> tuple[Sums, Tensor]:
    """sum(g), and with c and vec also sum(g*(c-mean)); and g (+ res), masked by mask > 0 or else by the ReLU of vec."""
    m, ch = g.shape
    bm, bc = _block(ch, elements)
    programs = programs_for(m, bm, ch // bc, per_sm)
    part = new(g, programs, 2, ch, dtype=torch.float32)
    gm = torch.empty_like(g) if keep else g
    v = (part, part, part) if vec is None else (vec[0], vec[1], vec[2])
    k.bn_reduce[(programs, ch // bc)](
        g,
        g if res is None else res,
        g if c is None else c,
        g if mask is None else mask,
        gm,
        *v,
        part,
        m,
        ch,
        *size,
        programs,
        RES=_residual(res, g),
        MASK=1 if mask is not None else 2,
        KEEP=keep,
        DOT=c is not None,
        BM=bm,
        BC=bc,
        num_warps=4,
    )
    return Sums(part, programs), gm


def normalise_backward(g: Tensor, c: Tensor, abc: Tensor, vec: Tensor, elements: int = 2048) -> Tensor:
    """dc = a*g + b*c + c0, g masked by the ReLU after the normalisation."""
    m, ch = g.shape
    bm, bc = _block(ch, elements)
    dc = torch.empty_like(g)
    k.bn_backward[(triton.cdiv(m, bm), ch // bc)](
        g, c, dc, abc[0], abc[1], abc[2], vec[0], vec[1], m, ch, BM=bm, BC=bc, num_warps=4
    )
    return dc
