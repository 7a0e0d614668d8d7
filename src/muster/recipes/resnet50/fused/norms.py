"""Batch normalization in the kernels of norm_kernels.py."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor, nn

from . import norm_kernels as kernels
from .launching import block_of, new, new32, programs_for, residual_mode, sum_parts, unread
from .operations import Operations, Sums


class NormKernels(Operations):
    """Normalization; Operations defines what each method computes."""

    def stats(self, x: Tensor) -> Sums:
        """Sums and sums of squares."""
        m, c = x.shape
        bm, bc = block_of(c, 8192)
        programs = programs_for(m, bm, c // bc, 1)
        part = new32(x, programs, 2, c)
        kernels.bn_stats[(programs, c // bc)](x, part, m, c, programs, BM=bm, BC=bc, num_warps=4)
        return Sums(part, programs)

    def finish_forward(self, sums: Sums, norm: nn.BatchNorm2d, count: int) -> Tensor:
        """From sums to the vec."""
        c = norm.num_features
        vec = new32(norm.weight, 4, c)
        kernels.finish_forward[(c // 16,)](
            sums.part, norm.weight, norm.bias, vec, norm.running_mean, norm.running_var, c, sums.parts, count,
            norm.momentum, norm.eps, BP=64, BC=16, num_warps=4,
        )  # fmt: skip
        return vec

    def finish_backward(self, sums: Sums, gamma: Tensor, vec: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """From sums to abc, dgamma and dbeta."""
        c = gamma.numel()
        abc, dgamma, dbeta = new32(gamma, 3, c), new32(gamma, c), new32(gamma, c)
        kernels.finish_backward[(c // 16,)](
            sums.part, gamma, vec, abc, dgamma, dbeta, c, sums.parts, count, BP=64, BC=16, num_warps=4
        )
        return abc, dgamma, dbeta

    def apply(self, x: Tensor, vec: Tensor, res: Tensor | None = None, res_vec: Tensor | None = None) -> Tensor:
        """Normalize, add, ReLU."""
        m, c = x.shape
        bm, bc = block_of(c, 2048)
        y = torch.empty_like(x)
        other = vec if res_vec is None else res_vec
        kernels.bn_apply[(triton.cdiv(m, bm), c // bc)](
            x, x if res is None else res, y, vec[0], vec[1], other[0], other[1], m, c,
            RES=0 if res is None else 1 if res_vec is None else 2, BM=bm, BC=bc, num_warps=4,
        )  # fmt: skip
        return y

    def copy_sum(
        self, x: Tensor, vec: Tensor | None = None, half: tuple[int, int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Copy and add up."""
        m, c = x.shape
        h, w = (1, 1) if half is None else half[1:]
        m = m if half is None else half[0] * ((h + 1) // 2) * ((w + 1) // 2)
        bm, bc = block_of(c, 4096)
        programs = programs_for(m, bm, c // bc, 2)
        y, part = new(x, m, c), new32(x, programs, c)
        vectors = (unread(part, c), unread(part, c)) if vec is None else (vec[0], vec[1])
        kernels.copy_sum[(programs, c // bc)](
            x, y, part, *vectors, m, c, h, w, programs,
            PRO=vec is not None, HALF=half is not None, BM=bm, BC=bc, num_warps=4,
        )  # fmt: skip
        return y, sum_parts(part)

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
        """Add, mask and take the sums of a gradient."""
        m, columns = g.shape
        bm, bc = block_of(columns, 8192)
        programs = programs_for(m, bm, columns // bc, 1)
        part = new32(g, programs, 2, columns)
        kept = torch.empty_like(g) if keep else g
        vectors = (part, part, part) if vec is None else (vec[0], vec[1], vec[2])
        kernels.bn_reduce[(programs, columns // bc)](
            g, g if res is None else res, g if c is None else c, g if mask is None else mask, kept, *vectors, part,
            m, columns, *size, programs, RES=residual_mode(res, g), MASK=1 if mask is not None else 2, KEEP=keep,
            DOT=c is not None, BM=bm, BC=bc, num_warps=4,
        )  # fmt: skip
        return Sums(part, programs), kept

    def normalize_backward(self, g: Tensor, c: Tensor, abc: Tensor, vec: Tensor) -> Tensor:
        """The gradient of a normalization's input."""
        m, columns = g.shape
        bm, bc = block_of(columns, 2048)
        dc = torch.empty_like(g)
        kernels.bn_backward[(triton.cdiv(m, bm), columns // bc)](
            g, c, dc, abc[0], abc[1], abc[2], vec[0], vec[1], m, columns, BM=bm, BC=bc, num_warps=4
        )
        return dc
