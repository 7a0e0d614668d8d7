"""Which parts of a stage run in custom kernels, and with which tiles; measured on an H200 (docs/recipes)."""

from __future__ import annotations

from typing import NamedTuple

from .operations import Tile


class Plan(NamedTuple):
    """The tile of each kernel of a stage; None means cuBLAS, with normalization in separate kernels."""

    first: Tile | None = None
    """conv1 of the first block"""
    conv1: Tile | None = None
    """conv1 of the others"""
    gram: Tile | None = None
    out: Tile | None = None
    joined: bool = False
    """conv1 of the next block runs inside out"""
    wgrad3: Tile | None = None
    dgrad3: Tile | None = None
    back_first: Tile | None = None
    back1: Tile | None = None


PLANS = {
    64: Plan(
        first=Tile(128, 64, 64, 4, 3, 3),
        gram=Tile(128, 0, 0, 4, 3, 2),
        # Not 4 warps and 32 rows: an illegal memory access with Triton 3.6 (2026-11-15).
        out=Tile(64, 256, 0, 8, 3, 1),
        joined=True,
        wgrad3=Tile(64, 256, 64, 8, 3, 1),
        dgrad3=Tile(64, 256, 0, 8, 3, 1),
        back_first=Tile(64, 0, 64, 4, 3, 2),
        back1=Tile(32, 0, 256, 8, 3, 1),
    ),
    128: Plan(
        first=Tile(64, 128, 256, 8, 3, 1),
        conv1=Tile(64, 128, 64, 4, 4, 2, True),
        gram=Tile(128, 0, 0, 8, 3, 1),
        out=Tile(64, 128, 0, 8, 3, 1),
        wgrad3=Tile(32, 128, 128, 8, 3, 2),
        dgrad3=Tile(128, 64, 0, 8, 3, 1, True),
        back_first=Tile(16, 0, 128, 4, 3, 2),
        back1=Tile(16, 0, 128, 4, 3, 2),
    ),
    256: Plan(out=Tile(64, 128, 0, 8, 3, 1)),
    512: Plan(),
}
"""Plans by width. num_stages=2 would mean one buffer and no overlap, so it is 3 everywhere."""

STEM = Tile(64, 0, 0, 4, 2, 1)
"""Tile of the stem's convolution, forward and backward."""
