"""1x1 convolutions that widen (w to 4w channels) with their normalization, with the kernels of widen_kernels.py.

Their output is neither stored nor read again: operations.py has the formulas.
"""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import widen_kernels as kernels
from .launching import described, new, new32, programs_for, sum_parts
from .operations import Branch, InputGradient, Operations, Sums, Tile


class WidenKernels(Operations):
    """1x1 convolutions that widen; Operations defines what each method computes."""

    def gram(self, x: Tensor, vec: Tensor | None, tile: Tile) -> Tensor:
        """S and s, in parts that are added up."""
        m, k = x.shape
        programs = programs_for(m, tile.bm, 1, tile.per_sm)
        part = new32(x, programs, k * k + k)
        vectors = (part, part) if vec is None else (vec[0], vec[1])
        kernels.gram[(programs,)](
            described(x, tile.bm, k), part, *vectors, m, programs, PRO=vec is not None, EVEN=m % tile.bm == 0,
            BM=tile.bm, K=k, STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        return sum_parts(part)

    def normalize(self, gram: Tensor, w: Tensor, norm: nn.BatchNorm2d, count: int) -> tuple[Tensor, Tensor]:
        """Moments of the output, then vec and scaled weight."""
        n, k = w.shape
        vec, scaled, part = new32(gram, 5, n), torch.empty_like(w), new32(gram, k // 64, 2, n)
        kernels.moments[(n // 32, k // 64)](gram, w, part, n, k, count, BN=32, BK=64, num_warps=4)
        kernels.finish_forward[(n // 16,)](
            part, gram, w, norm.weight, norm.bias, vec, scaled, norm.running_mean, norm.running_var, n, k, count,
            k // 64, norm.momentum, norm.eps, BP=16, BN=16, BK=min(k, 256), num_warps=4,
        )  # fmt: skip
        return vec, scaled

    def widen(
        self,
        main: Branch,
        tile: Tile,
        res: Tensor | None = None,
        res_vec: Tensor | None = None,
        second: Branch | None = None,
        following: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Sums | None]:
        """Convolution, normalization, residual, ReLU and optionally the next convolution in one pass."""
        (m, k), n, bm = main.x.shape, main.weight.shape[0], tile.bm
        bn = min(tile.bn, n)
        programs = programs_for(m, bm, n // bn, tile.per_sm)
        y = new(main.x, m, n)
        mode = 3 if second is not None else 1 if res_vec is None else 2
        other = second or Branch(main.x, None, main.weight, main.vec if res_vec is None else res_vec)
        outputs = 16 if following is None else following.shape[0]
        after = y if following is None else new(main.x, m, outputs)
        next_weight = main.weight if following is None else following
        part = new32(main.x, programs, 2, outputs)
        kernels.conv1x1_out[(programs * (n // bn),)](
            described(main.x, bm, k), described(main.weight, bn, k), described(y if res is None else res, bm, bn),
            described(other.x, bm, other.x.shape[1]), described(other.weight, bn, other.weight.shape[1]),
            described(y, bm, bn), described(next_weight, outputs, next_weight.shape[1]), described(after, bm, outputs),
            part, *vectors(main), *vectors(other), main.vec[4], other.vec[0], other.vec[1 if mode == 2 else 4],
            m, n, programs, PRO=main.x_vec is not None, RES=mode, PRO2=other.x_vec is not None,
            NEXT=following is not None, EVEN=m % bm == 0, BM=bm, BN=bn, K=k, K2=other.x.shape[1], NN=outputs,
            STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        return (y, None, None) if following is None else (y, after, Sums(part, programs))

    def widen_backward(
        self, sums: Sums, g: Tensor, w: Tensor, gram: Tensor, vec: Tensor, gamma: Tensor, count: int
    ) -> tuple[InputGradient, Tensor, Tensor, Tensor]:
        """Three small kernels on matrices of the weight's size."""
        n, k = w.shape
        wa, wb, dw, ab = torch.empty_like(w), torch.empty_like(w), new32(w, n, k), new32(w, 2, n)
        dgamma, dbeta, shift = new32(w, n), new32(w, n), new32(w, k)
        kernels.finish_backward[(n // 16,)](
            sums.part, g, w, gamma, vec, ab, wa, wb, dgamma, dbeta, n, k, sums.parts, count,
            BP=64, BN=16, BK=min(k, 256), num_warps=4,
        )  # fmt: skip
        kernels.finish_wgrad[(n // 32, k // 64)](g, w, gram, ab, dbeta, dw, n, k, count, BN=32, BK=64, num_warps=4)
        given = k > 128  # then cuBLAS is faster
        v = w.t() @ wb if given else new(w, k, k)
        kernels.finish_dgrad[(k // 16,)](
            w, wa, wb, dbeta, gram[k * k :], v, shift, n, count,
            GIVEN=given, K=k, BC=16, BN=256 if given else 64, num_warps=4,
        )  # fmt: skip
        return InputGradient(wa, v, shift), dw, dgamma, dbeta

    def widen_dgrad(
        self, g: Tensor, d: InputGradient, x: Tensor, x_vec: Tensor | None, tile: Tile, mean: Tensor | None = None
    ) -> tuple[Tensor, Sums | None]:
        """Two products into one accumulator, mask and sums."""
        (m, n), k, bm = g.shape, x.shape[1], tile.bm
        bn = min(tile.bn, n)
        programs = programs_for(m, bm, 1, tile.per_sm)
        dx, part = torch.empty_like(x), new32(x, programs, 2, k)
        pair = (d.shift, d.shift) if x_vec is None else (x_vec[0], x_vec[1])
        kernels.conv1x1_dgrad[(programs,)](
            described(g, bm, bn), described(d.wa, bn, k), described(d.v, k, k), described(x, bm, k),
            described(dx, bm, k), part, d.shift, *pair, d.shift if mean is None else mean, m, n, programs,
            PRO=x_vec is not None, EPI=mean is not None, STREAM=bn == n, EVEN=m % bm == 0, FLAT=tile.flat,
            BM=bm, BN=bn, K=k, STAGES=tile.stages, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return dx, None if mean is None else Sums(part, programs)


def vectors(branch: Branch) -> tuple[Tensor, Tensor]:
    """Scale and shift of a branch's input, or placeholders if it has none."""
    vec = branch.vec if branch.x_vec is None else branch.x_vec
    return vec[0], vec[1]
