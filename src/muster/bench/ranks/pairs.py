"""Latency and bandwidth between two ranks at a time."""

from __future__ import annotations

import time
from statistics import median

import torch

from .group import Group, dist
from .pair_schedule import chosen_ranks, rounds
from .timed_operations import WIDTH

LONGEST = 0.25
"""Maximum duration of one transfer in seconds."""

SECONDS = 20.0
"""Target duration of all transfers together, in seconds."""

_TRANSFERS = 3
_FIRST = 1 << 20
_LARGEST = 1 << 28
_PINGS = 0.1
_FEWEST_PINGS = 20


def measure_pairs(group: Group, hosts: list[int], largest: int) -> None:
    """Measure every pair and report each result; ranks outside the pair wait."""
    ranks = chosen_ranks(hosts)
    schedule = list(rounds(ranks))
    seconds = min(LONGEST, SECONDS / (2 * _TRANSFERS * max(1, len(schedule))))
    for number, pairs in enumerate(schedule):
        group.tell("at", what="pairs", done=number, of=len(schedule))
        group.barrier()
        mine = next((pair for pair in pairs if group.rank in pair), None)
        found = _pair(group, *mine, seconds=seconds, largest=largest) if mine else None
        results = [each for each in group.gather(found if mine and group.rank == mine[0] else None) if each]
        for result in results:
            group.tell("pair", **result)


def _pair(group: Group, a: int, b: int, *, seconds: float, largest: int) -> dict[str, float]:
    link = _Link(group, b if group.rank == a else a)
    return {
        "a": a,
        "b": b,
        "latency": link.latency(first=group.rank == a),
        "there": link.bandwidth(sends=group.rank == a, seconds=seconds, largest=largest),
        "back": link.bandwidth(sends=group.rank == b, seconds=seconds, largest=largest),
    }


class _Link:
    """The link between this rank and a peer."""

    def __init__(self, group: Group, peer: int) -> None:
        self.group, self.peer = group, peer
        self.word = group.zeros(2)

    def latency(self, *, first: bool) -> float:
        """Half the round-trip time of 8 bytes, in seconds.

        This is the 10th percentile of many measurements, because other load on a host can only make them longer.
        """
        once = [self._ping(first) for _ in range(3)][-1]
        pings = self._agree(int(_PINGS / max(once, 1e-7)), says=first)
        times = sorted(self._ping(first) for _ in range(max(_FEWEST_PINGS, min(500, pings))))
        return times[len(times) // 10] / 2

    def bandwidth(self, *, sends: bool, seconds: float, largest: int) -> float:
        """Bytes per second of the median transfer, with a size that takes about `seconds`."""
        size = min(_FIRST, largest)
        data = self.group.zeros(size // WIDTH)
        self._transfer(data, sends)
        rate = size / self._transfer(data, sends)
        size = self._agree(int(min(_LARGEST, largest, max(size, rate * seconds))), says=sends)
        data = self.group.zeros(size // WIDTH)
        self._transfer(data, sends)
        return size / median(self._transfer(data, sends) for _ in range(_TRANSFERS))

    def _agree(self, number: int, *, says: bool) -> int:
        """Use the number of the rank that `says` it on both ranks."""
        agreed = torch.tensor([number], dtype=torch.int64)
        if says:
            dist.send(agreed, self.peer)
        else:
            dist.recv(agreed, self.peer)
        return int(agreed.item())

    def _ping(self, first: bool) -> float:
        start = time.perf_counter()
        for sends in (first, not first):
            self._move(self.word, sends)
        self.group.settle()
        return time.perf_counter() - start

    def _transfer(self, data: torch.Tensor, sends: bool) -> float:
        """Send the data one way and wait for a reply, because a sent buffer may still be in transit."""
        self.group.settle()
        start = time.perf_counter()
        self._move(data, sends)
        self._move(self.word, not sends)
        self.group.settle()
        return time.perf_counter() - start

    def _move(self, data: torch.Tensor, sends: bool) -> None:
        if sends:
            dist.send(data, self.peer, group=self.group.measured)
        else:
            dist.recv(data, self.peer, group=self.group.measured)
