"""Lets all ranks notice in the same step that Muster is about to end them, so that they save the same step."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from muster.rank.world.time_left import VARIABLE

if TYPE_CHECKING:
    from muster.rank.world.context import World

_EVERY = 1.0
"""Seconds between two agreements of the ranks."""

_FIRST = 4
"""Steps before the first one, when the duration of a step is unknown."""


class DrainWatch:
    """Asks all ranks about once a second whether one of them has a deadline; does nothing under other launchers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps_left = _FIRST if VARIABLE in os.environ else -1
        self._steps = self._steps_left
        self._since = time.monotonic()

    def step(self) -> bool:
        """Count a step; True on all ranks after the same one, soon after a deadline was announced."""
        if self._steps_left < 0:
            return False
        self._steps_left -= 1
        if self._steps_left:
            return False
        import torch
        import torch.distributed as dist

        now = time.monotonic()
        seconds, self._since = (now - self._since) / self._steps, now
        both = torch.tensor([float(self._world.deadline is not None), seconds], device=self._world.device)
        if self._world.size > 1:
            dist.all_reduce(both)
        flags, total = float(both[0]), float(both[1])
        # All ranks got the same sum, so they also agree on the next time.
        self._steps = self._steps_left = max(1, round(_EVERY * self._world.size / total)) if total else _FIRST
        return flags > 0
