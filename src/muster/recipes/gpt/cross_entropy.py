"""Cross-entropy of many scores per token without keeping them: once the loss of some is known, so are gradients."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

try:
    from . import softmax_kernel
except ImportError:  # no Triton
    softmax_kernel = None

AT_ONCE = 2**30  # scores that exist at a time: 2 GiB in bfloat16; for 64 sequences of GPT-2, all would be 6.6 GB


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of the scores `x @ weight.T`."""
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(x, weight, targets)  # pyright: ignore[reportReturnType]
    parts = _parts(len(weight), x, targets)
    losses = [cross_entropy(linear(some, weight.to(x.dtype)).float(), t, reduction="sum") for some, t in parts]
    return torch.stack(losses).sum() / len(x)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        matrix, scale = weight.to(x.dtype), 1 / len(x)
        dx, dweight = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        loss = torch.zeros((), device=x.device)
        for some, right, dsome in _parts(len(matrix), x, targets[:, None], dx):
            scores = linear(some, matrix)
            score_of_right = scores.gather(1, right).float()
            log_sum = softmax_(scores, scale)
            loss += (log_sum - score_of_right).sum() * scale
            dscores = scores.scatter_(1, right, ((score_of_right - log_sum).exp() - 1).mul(scale).to(scores.dtype))
            torch.mm(dscores, matrix, out=dsome)
            dweight += dscores.T @ some
        ctx.save_for_backward(dx, dweight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        dx, dweight = ctx.saved_tensors
        return dx.mul_(grads[0]), dweight.mul_(grads[0]), None


def softmax_(scores: Tensor, scale: float) -> Tensor:
    """Replace each row by its softmax times `scale`, and return the logarithm of its sum of exponentials."""
    if scores.is_cuda and softmax_kernel:
        return softmax_kernel.softmax_(scores, scale)
    log_sum = scores.float().logsumexp(1, keepdim=True)
    scores.copy_((scores.float() - log_sum).exp() * scale)
    return log_sum


def _parts(vocabulary: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Divide tensors along their first dimension, so that `AT_ONCE` is kept."""
    count = -(-len(tensors[0]) * vocabulary // AT_ONCE)
    return zip(*(each.chunk(count) for each in tensors), strict=True)
