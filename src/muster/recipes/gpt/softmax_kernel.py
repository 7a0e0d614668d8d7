"""A softmax in place for long rows: one pass through GPU memory, where torch needs three."""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _softmax(scores, log_sums, width, scale, BLOCK: tl.constexpr):
    row = scores + tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    top = -float("inf")
    total = 0.0
    for start in range(0, width, BLOCK):
        x = tl.load(row + start + columns, mask=start + columns < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
        top = higher
    log_sum = top + tl.log(total)
    tl.store(log_sums + tl.program_id(0), log_sum)
    for start in range(0, width, BLOCK):  # the row is still in the L2 cache
        x = tl.load(row + start + columns, mask=start + columns < width, other=0.0).to(tl.float32)
        y = (tl.exp(x - log_sum) * scale).to(scores.dtype.element_ty)
        tl.store(row + start + columns, y, mask=start + columns < width)


def softmax_(scores: Tensor, scale: float) -> Tensor:
    """Replace each row by its softmax times `scale`, and return the logarithm of its sum of exponentials."""
    rows, width = scores.shape
    log_sums = torch.empty(rows, 1, dtype=torch.float32, device=scores.device)
    block = min(16384, triton.next_power_of_2(width))
    _softmax[(rows,)](scores, log_sums, width, scale, BLOCK=block, num_warps=16)
    return log_sums
