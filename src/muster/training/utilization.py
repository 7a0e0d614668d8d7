"""How much of a GPU's arithmetic a training step uses: model FLOP utilization (MFU)."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.rank.world.context import World

PEAKS = {"H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bfloat16 operations per second that the vendor states, by a word of the GPU's name (2026-11)."""


def utilization(operations: float, world: World) -> str:
    """Describe the operations per second of all ranks: as MFU if this GPU's peak is known, else per rank."""
    import torch

    each = operations / world.size
    if world.device.type == "cuda":
        for word in torch.cuda.get_device_name(world.device).replace("-", " ").split():
            if word in PEAKS:
                return f"MFU {each / PEAKS[word]:.1%}"
    return f"{each / 1e12:,.3g} TFLOP/s per rank"
