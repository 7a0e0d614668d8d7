"""All kernels together."""

from __future__ import annotations

from .convs import ConvKernels
from .norms import NormKernels
from .stem import StemKernels
from .widen import WidenKernels


class Kernels(NormKernels, ConvKernels, WidenKernels, StemKernels):
    """Every operation in bf16 in Triton, except those for which cuBLAS is faster."""
