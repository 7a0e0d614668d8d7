"""The state of a rank's random number generators: torch's, the GPU's, Python's and numpy's."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from muster.training.tree import pack, unpack

if TYPE_CHECKING:
    from torch import Tensor


def capture() -> Tensor:
    """Return the packed state of every generator that a training script may use."""
    import torch

    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = (str(kind), keys.tolist(), int(position), int(has_gauss), float(cached))
    return pack(state)


def restore(packed: Tensor) -> None:
    """Restore every captured generator that exists in this process."""
    import torch

    state = unpack(packed)
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])
