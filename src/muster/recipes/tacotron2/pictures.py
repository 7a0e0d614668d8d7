"""Alignments and mel spectrograms as PNG images, drawn without a plotting library, which a cluster may not have."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

# Dark blue over green to yellow: five stops of viridis (CC0), which also works in grayscale and for the color-blind.
STOPS = torch.tensor([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=torch.float32)
GAP = 6
"""White pixels between two panels."""


def color(values: Tensor) -> Tensor:
    """Map [height, width] to bytes [height, width, 3], the smallest value dark and the largest bright."""
    values = values.detach().float().cpu()
    low, high = values.min(), values.max()
    place = (values - low) / (high - low).clamp(min=1e-9) * (len(STOPS) - 1)
    stop = place.floor().clamp(max=len(STOPS) - 2).long()
    share = (place - stop)[..., None]
    return (STOPS[stop] * (1 - share) + STOPS[stop + 1] * share).round().byte()


def picture(panels: list[Tensor], *, scale: int = 2) -> Tensor:
    """Draw panels [height, width] one below the other, the first row of each at its bottom."""
    drawn = [color(panel.flip(0)).repeat_interleave(scale, 0).repeat_interleave(scale, 1) for panel in panels]
    width = max(panel.shape[1] for panel in drawn)
    rows: list[Tensor] = []
    for panel in drawn:
        rows.append(torch.nn.functional.pad(panel, (0, 0, 0, width - panel.shape[1]), value=255))
        rows.append(torch.full((GAP, width, 3), 255, dtype=torch.uint8))
    return torch.cat(rows[:-1])


def write_png(path: Path, pixels: Tensor) -> None:
    """Write bytes [height, width, 3] as a PNG file."""
    height, width, _ = pixels.shape
    lines = torch.cat((torch.zeros(height, 1, dtype=torch.uint8), pixels.reshape(height, -1)), 1)  # 0: no filter

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits per RGB channel
    packed = zlib.compress(lines.numpy().tobytes(), 6)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))


def draw_clip(path: Path, alignment: Tensor, made: Tensor, target: Tensor | None = None) -> None:
    """Draw an alignment [frames, symbols] above the synthesized mel and the target, [channels, frames]."""
    write_png(path, picture([alignment.T, made, *([] if target is None else [target])]))
