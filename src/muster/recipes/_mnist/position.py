"""The position of a run in its data, for loops over a DistributedSampler; `muster.Batches` has its own."""

from __future__ import annotations

from collections.abc import Mapping

import muster


class Position:
    """The epoch, and how many of its samples are done; part of each checkpoint."""

    def __init__(self, length: int, batch_size: int, world: muster.World) -> None:
        self.length, self.total = length, batch_size * world.size
        """Samples of an epoch, and of a step over all ranks."""
        self.epoch = self.done = 0
        self._ranks = world.size

    @property
    def progress(self) -> float:
        """Progress of the run in epochs: 2.5 in the middle of the third."""
        return self.epoch + self.done / self.length

    @property
    def done_by_each(self) -> int:
        """Number of samples of this epoch that each rank has done.

        Rank r of n gets the samples r, r + n, r + 2n, ... of an epoch. So after a resume with another number of ranks,
        none is repeated, and fewer than n are left out.
        """
        return -(-self.done // self._ranks)

    def advance(self, count: int) -> None:
        """Count a batch of which each rank did `count` samples."""
        self.done += count * self._ranks

    def end_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return what `muster.Checkpoints` saves."""
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go to a saved position."""
        self.epoch, self.done = state_dict["epoch"], state_dict["done"]
