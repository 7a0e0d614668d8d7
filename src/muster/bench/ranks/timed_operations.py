"""The six operations: their buffers, the timed call, and the check of the result.

Sizes and counts are those of nccl-tests: the size is the whole array (for all-gather, reduce-scatter and
all-to-all the parts of all ranks together), the count is what a rank passes to the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .group import Call, Group, dist

WIDTH = 4
"""Bytes of a float."""

_PERIOD = 251
"""A prime, so that swapped blocks of any power of two are detected."""

_PIECE = _PERIOD * 4096
"""Number of elements filled or checked at a time, so that a check needs no second large buffer."""


class Values(NamedTuple):
    """The values `scale * ((offset + i) % 251) + plus`: integers, exact as floats for thousands of ranks."""

    offset: int = 0
    scale: int = 1
    plus: int = 0

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill a tensor with these values."""
        for start, values in self._pieces(tensor):
            tensor[start : start + len(values)] = values

    def wrong_in(self, tensor: torch.Tensor) -> int:
        """Number of elements that differ from these values."""
        return sum(
            int((tensor[start : start + len(values)] != values).sum().item()) for start, values in self._pieces(tensor)
        )

    def _pieces(self, tensor: torch.Tensor) -> Any:
        steps = torch.arange(min(_PIECE, len(tensor)), device=tensor.device)
        whole = (((steps + self.offset) % _PERIOD) * self.scale + self.plus).to(tensor.dtype)
        for start in range(0, len(tensor), _PIECE):
            yield start, whole[: len(tensor) - start]


@dataclass(frozen=True)
class Exercise:
    """One operation at one size; it works in place if it sends and receives the same buffer."""

    call: Call
    sent: torch.Tensor
    received: torch.Tensor
    expected: Sequence[Values]
    """The expected result if each rank sends `Values(plus=rank)`, in parts of equal length."""

    @property
    def size(self) -> int:
        """Bytes of the whole array."""
        return max(len(self.sent), len(self.received)) * WIDTH

    @property
    def count(self) -> int:
        """Elements that a rank passes to the call."""
        return len(self.received) // len(self.expected)

    def check(self, rank: int) -> int:
        """Fill the buffers, call once, and count the wrong elements on this rank."""
        self.received.fill_(-1)
        Values(plus=rank).fill(self.sent)
        self.call()
        return sum(map(Values.wrong_in, self.expected, self.received.chunk(len(self.expected))))


def all_reduce(group: Group, size: int) -> Exercise:
    """Every rank gets the sum of all arrays."""
    data = group.zeros(max(1, size // WIDTH))
    return Exercise(lambda: dist.all_reduce(data, group=group.measured), data, data, [_sum_of_all(group)])


def all_gather(group: Group, size: int) -> Exercise:
    """Every rank gets the parts of all ranks."""
    part, whole = _part_and_whole(group, size)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    return Exercise(
        lambda: gather(whole, part, group=group.measured),
        part,
        whole,
        [Values(plus=rank) for rank in range(group.size)],
    )


def reduce_scatter(group: Group, size: int) -> Exercise:
    """Every rank gets its part of the sum of all arrays."""
    part, whole = _part_and_whole(group, size)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
    return Exercise(
        lambda: scatter(part, whole, group=group.measured),
        whole,
        part,
        [_sum_of_all(group, offset=group.rank * len(part))],
    )


def broadcast(group: Group, size: int) -> Exercise:
    """Every rank gets the array of rank 0."""
    data = group.zeros(max(1, size // WIDTH))
    return Exercise(lambda: dist.broadcast(data, src=0, group=group.measured), data, data, [Values()])


def all_to_all(group: Group, size: int) -> Exercise:
    """Every rank gets one part from each rank."""
    part, sent = _part_and_whole(group, size)
    received = group.zeros(len(sent))
    mine = group.rank * len(part)
    return Exercise(
        lambda: dist.all_to_all_single(received, sent, group=group.measured),
        sent,
        received,
        [Values(offset=mine, plus=rank) for rank in range(group.size)],
    )


def send_recv(group: Group, size: int) -> Exercise:
    """Every rank sends to the next one and receives from the previous one, simultaneously."""
    sent = group.zeros(max(1, size // WIDTH))
    received = group.zeros(len(sent))
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def call() -> None:
        # Post the receive first: gloo notifies the peer over the same connection as the data, and behind the data of a
        # send the notification would arrive too late for both directions to run simultaneously.
        both = [
            dist.P2POp(dist.irecv, received, before, group.measured),
            dist.P2POp(dist.isend, sent, after, group.measured),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return Exercise(call, sent, received, [Values(plus=before)])


OPERATIONS: dict[str, Callable[[Group, int], Exercise]] = {
    "all-reduce": all_reduce,
    "all-gather": all_gather,
    "reduce-scatter": reduce_scatter,
    "broadcast": broadcast,
    "all-to-all": all_to_all,
    "send-recv": send_recv,
}


def _part_and_whole(group: Group, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's part of an array, and the array, which has at least one element per rank."""
    count = max(1, size // WIDTH // group.size)
    return group.zeros(count), group.zeros(count * group.size)


def _sum_of_all(group: Group, offset: int = 0) -> Values:
    return Values(offset=offset, scale=group.size, plus=group.size * (group.size - 1) // 2)
