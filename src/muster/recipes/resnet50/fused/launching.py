"""Helpers for launching kernels: number of programs, buffers, tensor descriptors, and sums of parts."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from . import norm_kernels


@functools.cache
def multiprocessors() -> int:
    """Number of multiprocessors of the device; four for Triton's interpreter."""
    if not torch.cuda.is_available():
        return 4
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def programs_for(m: int, bm: int, columns: int, per_sm: int) -> int:
    """Number of programs that share the rows."""
    return max(1, min(-(-m // bm), multiprocessors() * per_sm // columns))


def new(like: Tensor, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """An empty tensor on the device of `like`."""
    return torch.empty(shape, device=like.device, dtype=dtype)


def new32(like: Tensor, *shape: int) -> Tensor:
    """An empty float32 tensor on the device of `like`."""
    return new(like, *shape, dtype=torch.float32)


def unread(t: Tensor, size: int) -> Tensor:
    """A placeholder vector that a kernel loads but does not use: t, or a new tensor if it is too short."""
    flat = t.view(-1)
    return flat if flat.numel() >= size else new32(t, size)


def described(t: Tensor, *block: int) -> TensorDescriptor:
    """A descriptor with which the tensor memory accelerator reads or writes blocks."""
    return TensorDescriptor.from_tensor(t, list(block))


def block_of(columns: int, elements: int) -> tuple[int, int]:
    """Rows and columns of a block with this many elements."""
    bc = min(columns, 256)
    return elements // bc, bc


def residual_mode(res: Tensor | None, x: Tensor) -> int:
    """0: none; 1: one row per row of x; 2: rows only for the even rows and columns of x's maps."""
    return 0 if res is None else 1 if len(res) == len(x) else 2


def sum_parts(part: Tensor) -> Tensor:
    """The sum over the first dimension, in a fixed order."""
    parts, size = part.shape
    if parts == 1:
        return part[0]
    out = new32(part, size)
    norm_kernels.sum_parts[(triton.cdiv(size, 128),)](part, out, size, parts, BP=16, BC=128, num_warps=4)
    return out
