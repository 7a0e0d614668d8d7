"""`muster.Batches`: which samples of every batch each rank takes, and the position of a run in its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.errors import UsageError
from muster.training.shares import check_shares, split

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from muster.rank.world.context import World


STRIDE = 1_000_003
"""Distance between the generator seeds of two runs whose seeds differ by 1; their epochs are in between."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """This rank's part of one batch."""

    indices: Tensor
    """Samples of this rank. If its share is empty, one sample with weight 0, so that it still joins the collectives."""
    weight: float
    """Factor for this rank's mean loss that makes DDP's average over the ranks the mean over the whole batch."""
    total: int
    """Number of samples of the whole batch, over all ranks."""
    end: int
    """Position in the epoch at which the whole batch ends."""
    progress: float
    """Position of the middle of the batch in the run, in epochs, for learning rate schedules."""


class Batches:
    """The batches of consecutive epochs; a saved position can be resumed with a different number of ranks.

    `batch_size` is per rank; the whole batch, `batch_size` times the number of ranks, is divided by `shares` (one
    number for each rank; equal by default). All ranks draw from one permutation of all samples, so none is seen twice
    in an epoch. An incomplete last batch is dropped unless `drop_last` is False; if the number of ranks changes within
    an epoch, the epoch still ends where it would have ended, with a smaller last batch if necessary.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        world: World,
        *,
        shares: Sequence[float] | None = None,
        seed: int = 0,
        drop_last: bool = True,
        device: torch.device | None = None,
    ) -> None:
        self.length, self.seed, self.epoch, self.position = length, seed, 0, 0
        self.total = batch_size * world.size
        """Number of samples of a whole batch."""
        self._rank, self._shares = world.rank, check_shares(shares, world.size)
        self._drop_last, self._device, self._stride = drop_last, device, STRIDE
        if batch_size < 1:
            raise UsageError(f"batch size must be at least 1, got {batch_size}")
        if length < self.total and drop_last:
            ranks = f" ({batch_size} on each of {world.size} ranks)" if world.size > 1 else ""
            raise UsageError(
                f"a batch of {self.total} samples{ranks} is larger than the data set, which has {length}",
                hint=f"use a batch size of {max(1, length // world.size)} or less{' per rank' if ranks else ''}",
            )
        self._end = self._whole_epoch()

    def _whole_epoch(self) -> int:
        """Number of samples of an epoch that begins with this number of ranks."""
        return self.length - self.length % self.total if self._drop_last else self.length

    @property
    def progress(self) -> float:
        """Progress of the run in epochs: 2.5 in the middle of the third."""
        return self.epoch + self.position / self.length

    def __len__(self) -> int:
        """Number of batches left in this epoch."""
        return -(-max(0, self._end - self.position) // self.total)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of this epoch; the position advances with each batch, and finally to the next epoch."""
        for batch in self.rest_of_epoch():
            self.position = batch.end
            yield batch
        self.epoch, self.position, self._end = self.epoch + 1, 0, self._whole_epoch()

    def rest_of_epoch(self) -> list[Batch]:
        """Return the rest of this epoch's batches without moving the position, for loaders that prefetch."""
        import torch

        # The generator of a CPU uses only the low 32 bits of its seed.
        generator = torch.Generator().manual_seed((self.seed * self._stride + self.epoch) % 2**32)
        order = torch.randperm(self.length, generator=generator).to(self._device or "cpu")
        starts = range(self.position, self.position + len(self) * self.total, self.total)
        return [self._part(order, start, min(self.total, self._end - start)) for start in starts]

    def _part(self, order: Tensor, start: int, total: int) -> Batch:
        sizes = split(total, self._shares)
        mine, first = sizes[self._rank], start + sum(sizes[: self._rank])
        return Batch(
            indices=order[first : first + mine] if mine else order[start : start + 1],
            weight=mine * len(sizes) / total,
            total=total,
            end=start + total,
            progress=self.epoch + (start + total / 2) / self.length,
        )

    def mine(self, length: int) -> range:
        """Return this rank's part of `length` consecutive samples, for evaluations that count each sample once."""
        sizes = split(length, self._shares)
        first = sum(sizes[: self._rank])
        return range(first, first + sizes[self._rank])

    def state_dict(self) -> dict[str, int]:
        """Return the position, for `muster.Checkpoints`."""
        state = {"epoch": self.epoch, "position": self.position, "seed": self.seed, "length": self.length}
        return {**state, "end": self._end, "stride": self._stride}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go to a saved position, which may come from a run with a different number of ranks."""
        for name, mine in (("length", self.length), ("seed", self.seed)):
            if state_dict[name] != mine:
                raise UsageError(
                    f"the checkpoint was saved with {_WORDS[name]} {state_dict[name]}, but this run has {mine}",
                    hint="resume with the same data and seed",
                )
        self.epoch, self.position = state_dict["epoch"], state_dict["position"]
        # In older versions, the order did not depend on the seed; a run that began so keeps it.
        self._stride = state_dict.get("stride", 0)
        # The samples of an epoch are chosen when it begins; checkpoints of older versions do not have its end.
        self._end = state_dict.get("end", self._whole_epoch()) if self.position else self._whole_epoch()


_WORDS = {"length": "a data set of length", "seed": "seed"}
