"""1x1 convolutions in the kernels of conv_kernels.py."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
from torch import Tensor

from . import conv_kernels as kernels
from .launching import described, new, new32, programs_for, residual_mode, sum_parts, unread
from .operations import Operations, Sums, Tile


class ConvKernels(Operations):
    """1x1 convolutions that do not widen; Operations defines what each method computes."""

    def conv_forward(self, x: Tensor, w: Tensor, tile: Tile, vec: Tensor | None = None) -> tuple[Tensor, Sums]:
        """Product and sums."""
        (m, k), n = x.shape, w.shape[0]
        bn, bk = min(tile.bn, n), min(tile.bk, k)
        programs = programs_for(m, tile.bm, n // bn, tile.per_sm)
        y, part = new(x, m, n), new32(x, programs, 2, n)
        vectors = (unread(part, k), unread(part, k)) if vec is None else (vec[0], vec[1])
        kernels.conv1x1_forward[(programs * (n // bn),)](
            described(x, tile.bm, bk), described(w, bn, bk), described(y, tile.bm, bn), part, *vectors,
            m, n, k, programs, PRO=vec is not None, STREAM=bk == k, EVEN=m % tile.bm == 0, FLAT=tile.flat,
            BM=tile.bm, BN=bn, BK=bk, STAGES=tile.stages, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return y, Sums(part, programs)

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
        """Both gradients in one pass; for few columns of g."""
        (m, n), k = g.shape, x.shape[1]
        bm, bk = tile.bm, min(tile.bk, k)
        programs = programs_for(m, bm, k // bk, tile.per_sm)
        dx, pw, ps = torch.empty_like(x), new32(x, programs, n * k), new32(x, programs, 2, k)
        vectors = (abc[0], abc[0], abc[0]) if x_vec is None else (x_vec[0], x_vec[1], x_vec[2])
        mode = residual_mode(res, x)
        kernels.conv1x1_backward[(programs * (k // bk),)](
            described(g, bm, n), described(c, bm, n), described(x, bm, bk), described(w, n, bk),
            described(res if mode == 1 else x, bm, bk), described(dx, bm, bk), res, pw, ps,
            abc[0], abc[1], abc[2], y_vec[0], y_vec[1], *vectors, m, k, *size, programs,
            PRO_X=x_vec is not None, RES=mode, DOT=x_vec is not None, EVEN=m % bm == 0, BM=bm, N=n, BK=bk,
            STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        return dx, sum_parts(pw).view(n, k), Sums(ps, programs)

    def conv_wgrad(self, g: Tensor, x: Tensor, tile: Tile, x_vec: Tensor | None = None) -> Tensor:
        """The weight's gradient, the pixels split over programs."""
        (m, n), k = g.shape, x.shape[1]
        bn, bk = min(tile.bn, n), min(tile.bk, k)
        tiles = (n // bn) * (k // bk)
        splits = programs_for(m, tile.bm, tiles, tile.per_sm)
        pw = new32(x, splits, n * k)
        vectors = (pw, pw) if x_vec is None else (x_vec[0], x_vec[1])
        kernels.conv1x1_wgrad[(tiles * splits,)](
            described(g, tile.bm, bn), described(x, tile.bm, bk), pw, *vectors, m, n, k, splits,
            PRO_X=x_vec is not None, EVEN=m % tile.bm == 0, BM=tile.bm, BN=bn, BK=bk, STAGES=tile.stages,
            num_warps=tile.warps,
        )  # fmt: skip
        return sum_parts(pw).view(n, k)
