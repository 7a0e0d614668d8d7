"""The stem (7x7 convolution of stride 2, normalization, ReLU, 3x3 pooling of stride 2), with stem_kernels.py's kernels.

The image is divided into blocks of 2x2 pixels with 16 channels each (12 used). The 7x7 convolution of stride 2 becomes
a 4x4 convolution of stride 1, and the window of one kernel row is 64 adjacent values, which the tensor memory
accelerator reads as a matrix with overlapping rows. Pooling keeps the raw (not normalized) maximum, so that
normalization and ReLU happen when it is read, and the sums of the normalization's gradient need only the pooled map.
"""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from . import stem_kernels as kernels
from .launching import described, new, new32, programs_for, sum_parts
from .operations import STEM_CHANNELS, Operations, Sums, Tile, pixel_weight

POOL_ROWS = 16
"""Number of pixels per program of the pooling kernels."""


class StemKernels(Operations):
    """The stem; Operations defines what each method computes."""

    def blocks(self, x: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
        """Blocks in bf16, of images of any type and layout."""
        n, _, h, w = x.shape
        bh, bw = h // 2 + 3, w // 2 + 3
        y = new(x, n, bh, bw, 16)
        kernels.cut_blocks[(n * bh, triton.cdiv(bw, 128))](
            x, y, scale, shift, h, w, *x.stride(), bh, bw, BM=128, num_warps=4
        )
        return y

    def stem_forward(self, x: Tensor, w: Tensor, tile: Tile) -> tuple[Tensor, Sums]:
        """The 4x4 convolution and its sums, four rows of pixels at a time."""
        n, bh, bw, _ = x.shape
        oh, ow = bh - 3, bw - 3
        programs = programs_for(n * oh // 4 * -(-ow // tile.bm), 1, 1, tile.per_sm)
        y, part = new(x, n * oh, ow, STEM_CHANNELS), new32(x, programs, 2, STEM_CHANNELS)
        kernels.stem_forward[(programs,)](
            overlapping(x, tile.bm), described(w, STEM_CHANNELS, 64), described(y, 1, tile.bm, STEM_CHANNELS), part,
            n * oh, oh, ow, bh, bw, programs, BM=tile.bm, STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        return y.view(-1, STEM_CHANNELS), Sums(part, programs)

    def stem_wgrad(self, x: Tensor, dc: Tensor, tile: Tile) -> Tensor:
        """The weight's gradient, the rows of pixels split over programs."""
        n, bh, bw, _ = x.shape
        oh, ow = bh - 3, bw - 3
        programs = programs_for(n * oh // 4 * -(-ow // tile.bm), 1, 1, tile.per_sm)
        pw = new32(x, programs, STEM_CHANNELS * 256)
        g = dc.view(n * oh, ow, STEM_CHANNELS)
        kernels.stem_wgrad[(programs,)](
            overlapping(x, tile.bm), described(g, 1, tile.bm, STEM_CHANNELS), pw,
            n * oh, oh, ow, bh, bw, programs, BM=tile.bm, STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        return pixel_weight(sum_parts(pw))

    def pool(self, c: Tensor, vec: Tensor, size: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """The maximum of each window, and its index."""
        n, oh, ow = size
        ph, pw = (oh + 1) // 2, (ow + 1) // 2
        count = n * ph * pw
        q, which = new(c, count, STEM_CHANNELS), new(c, count, STEM_CHANNELS, dtype=torch.int8)
        kernels.pool_forward[(triton.cdiv(count, POOL_ROWS),)](
            c, q, which, vec[0], count, oh, ow, ph, pw, BM=POOL_ROWS, num_warps=4
        )
        return q, which

    def unpool(self, dq: Tensor, which: Tensor, c: Tensor, abc: Tensor, size: tuple[int, int, int]) -> Tensor:
        """The gradient of pooling and normalization together."""
        n, oh, ow = size
        dc = torch.empty_like(c)
        ph, pw = (oh + 1) // 2, (ow + 1) // 2
        kernels.pool_backward[(n * (ph + 1), triton.cdiv(pw + 1, POOL_ROWS))](
            dq, which, c, dc, abc[0], abc[1], abc[2], oh, ow, ph, pw, BM=POOL_ROWS, num_warps=4
        )
        return dc


def overlapping(x: Tensor, rows: int) -> TensorDescriptor:
    """Blocks as a matrix of windows of four adjacent blocks; each row starts one block after the previous one."""
    return TensorDescriptor(x, [x.numel() // 16 - 3, 64], [16, 1], [rows, 64])
