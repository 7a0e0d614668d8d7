# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false
"""1x1 convolutions that widen (w to 4w channels) and the normalisation after them, without their output in memory.

c = x W^T is linear in x, so the sums of the normalisation come from x, which is four times smaller: with S = x^T x
and s = sum(x), mean(c) = W s / m and var(c) = diag(W cov(x) W^T). The convolution then writes its normalised,
summed and rectified output at once. Backward, with dc = a*g + b*c + c0 (per channel) and G = g^T x: sum(g*c) =
sum_k W*G, dW = a*G + b*(W S) + c0 s^T, and dx = g (aW) + x (W^T b W) + a constant: c is never needed, neither read
nor kept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from triton.tools.tensor_descriptor import TensorDescriptor

from . import linear_kernels as k
from .ops import Sums, Tile, new, programs_for, sum_parts


class Dgrad(NamedTuple):
    """What dx needs: aW, V and the constant."""

    wa: Tensor
    v: Tensor
    shift: Tensor


def _desc(t: Tensor, *block: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(t, list(block))


def mm32(a: Tensor, b: Tensor) -> Tensor:
    """A product of bf16 matrices in float32."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def make_gram(x: Tensor, vec: Tensor | None, tile: Tile) -> Tensor:
    """[S, s] flat, of x or of relu(x*scale+shift); for up to 128 columns."""
    m, kk = x.shape
    programs = programs_for(m, tile.bm, 1, tile.per_sm)
    part = new(x, programs, kk * kk + kk, dtype=torch.float32)
    v = (part, part) if vec is None else (vec[0], vec[1])
    k.gram[(programs,)](
        _desc(x, tile.bm, kk),
        part,
        *v,
        m,
        programs,
        PRO=vec is not None,
        EVEN=m % tile.bm == 0,
        BM=tile.bm,
        K=kk,
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    return sum_parts(part)


def wide_gram(x: Tensor, total: Tensor) -> Tensor:
    """The same through cuBLAS, for more columns; total is sum(x)."""
    return torch.cat([mm32(x.t(), x).view(-1), total])


def normalise(flat: Tensor, w: Tensor, norm: nn.BatchNorm2d, m: int) -> tuple[Tensor, Tensor]:
    """vec and scaled weight of the normalisation after x w^T, from x's gram; updates the running statistics."""
    n, kk = w.shape
    vec, ws, part = (
        new(flat, 5, n, dtype=torch.float32),
        torch.empty_like(w),
        new(flat, kk // 64, 2, n, dtype=torch.float32),
    )
    k.moments[(n // 32, kk // 64)](flat, w, part, n, kk, m, BN=32, BK=64, num_warps=4)
    k.finish_forward[(n // 16,)](
        part,
        flat,
        w,
        norm.weight,
        norm.bias,
        vec,
        ws,
        norm.running_mean,
        norm.running_var,
        n,
        kk,
        m,
        kk // 64,
        norm.momentum,
        norm.eps,
        BP=16,
        BN=16,
        BK=min(kk, 256),
        num_warps=4,
    )
    return vec, ws


def out(
    x: Tensor,
    x_vec: Tensor | None,
    ws: Tensor,
    vec: Tensor,
    tile: Tile,
    res: Tensor | None = None,
    res_vec: Tensor | None = None,
    second: tuple[Tensor, Tensor | None, Tensor, Tensor] | None = None,
    following: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Sums | None]:
    """relu(f(x) ws^T + shift + residual) and, when the weight of the following convolution is given, its output and
    sums.

    The residual is res, res normalised by res_vec, or second = (x2, its vec, scaled weight, vec).
    """
    (m, kk), n = x.shape, ws.shape[0]
    bm, bn, _, warps, stages, per_sm, _ = tile
    bn = min(bn, n)
    programs = programs_for(m, bm, n // bn, per_sm)
    y = new(x, m, n)
    mode = 3 if second is not None else 1 if res_vec is None else 2
    x2, x2_vec, ws2, vec2 = second if second is not None else (x, None, ws, vec if res_vec is None else res_vec)
    nn_ = 16 if following is None else following.shape[0]
    yn = y if following is None else new(x, m, nn_)
    part = new(x, programs, 2, nn_, dtype=torch.float32)
    wn = ws if following is None else following
    k.conv1x1_out[(programs * (n // bn),)](
        _desc(x, bm, kk),
        _desc(ws, bn, kk),
        _desc(y if res is None else res, bm, bn),
        _desc(x2, bm, x2.shape[1]),
        _desc(ws2, bn, ws2.shape[1]),
        _desc(y, bm, bn),
        _desc(wn, nn_, wn.shape[1]),
        _desc(yn, bm, nn_),
        part,
        *_pair(x_vec, vec),
        *_pair(x2_vec, vec),
        vec[4],
        vec2[0],
        vec2[1] if mode == 2 else vec2[4],
        m,
        n,
        programs,
        PRO=x_vec is not None,
        RES=mode,
        PRO2=x2_vec is not None,
        NEXT=following is not None,
        EVEN=m % bm == 0,
        BM=bm,
        BN=bn,
        K=kk,
        K2=x2.shape[1],
        NN=nn_,
        STAGES=stages,
        num_warps=warps,
    )
    return (y, None, None) if following is None else (y, yn, Sums(part, programs))


def _pair(vec: Tensor | None, other: Tensor) -> tuple[Tensor, Tensor]:
    return (other[0], other[0]) if vec is None else (vec[0], vec[1])


def backward(
    total: Sums, g: Tensor, w: Tensor, flat: Tensor, vec: Tensor, gamma: Tensor, m: int
) -> tuple[Dgrad, Tensor, Tensor, Tensor]:
    """What dx needs, dw, dgamma and dbeta, from sum(g) and G = g^T x (float32)."""
    n, kk = w.shape
    wa, wb = torch.empty_like(w), torch.empty_like(w)
    dw, ab, dgamma, dbeta, shift = (new(w, *s, dtype=torch.float32) for s in ((n, kk), (2, n), (n,), (n,), (kk,)))
    k.finish_backward[(n // 16,)](
        total.part,
        g,
        w,
        gamma,
        vec,
        ab,
        wa,
        wb,
        dgamma,
        dbeta,
        n,
        kk,
        total.parts,
        m,
        BP=64,
        BN=16,
        BK=min(kk, 256),
        num_warps=4,
    )
    k.finish_wgrad[(n // 32, kk // 64)](g, w, flat, ab, dbeta, dw, n, kk, m, BN=32, BK=64, num_warps=4)
    given = kk > 128  # then cuBLAS is faster
    v = w.t() @ wb if given else new(w, kk, kk)
    k.finish_dgrad[(kk // 16,)](
        w,
        wa,
        wb,
        dbeta,
        flat[kk * kk :],
        v,
        shift,
        n,
        m,
        GIVEN=given,
        K=kk,
        BC=16,
        BN=256 if given else 64,
        num_warps=4,
    )
    return Dgrad(wa, v, shift), dw, dgamma, dbeta


def dgrad(
    g: Tensor, d: Dgrad, x: Tensor, x_vec: Tensor | None, tile: Tile, mean: Tensor | None = None
) -> tuple[Tensor, Sums | None]:
    """dx; with the mean of x's normalisation it is masked by its ReLU and comes with the sums for it."""
    (m, n), kk = g.shape, x.shape[1]
    bm, bn, _, warps, stages, per_sm, flat = tile
    bn = min(bn, n)
    programs = programs_for(m, bm, 1, per_sm)
    dx = torch.empty_like(x)
    ps = new(x, programs, 2, kk, dtype=torch.float32)
    k.conv1x1_dgrad[(programs,)](
        _desc(g, bm, bn),
        _desc(d.wa, bn, kk),
        _desc(d.v, kk, kk),
        _desc(x, bm, kk),
        _desc(dx, bm, kk),
        ps,
        d.shift,
        *((d.shift, d.shift) if x_vec is None else (x_vec[0], x_vec[1])),
        d.shift if mean is None else mean,
        m,
        n,
        programs,
        PRO=x_vec is not None,
        EPI=mean is not None,
        STREAM=bn == n,
        EVEN=m % bm == 0,
        FLAT=flat,
        BM=bm,
        BN=bn,
        K=kk,
        STAGES=stages,
        num_warps=warps,
        num_stages=stages,
    )
    return dx, None if mean is None else Sums(ps, programs)


def wide_dgrad(g: Tensor, d: Dgrad, x: Tensor) -> Tensor:
    """dx through cuBLAS, for many columns."""
    return torch.addmm(d.shift.to(x.dtype), x, d.v).addmm_(g, d.wa)
