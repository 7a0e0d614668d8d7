"""Which pairs of ranks are measured, and which of them simultaneously."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MOST_RANKS = 16
"""Up to this many ranks, every pair is measured on its own; above, one rank represents each host."""

MOST_HOSTS = 64
"""Maximum number of hosts; more would take minutes and produce an unreadable matrix."""


def chosen_ranks(hosts: list[int]) -> list[int]:
    """The ranks whose pairs are measured, where rank r runs on host hosts[r]."""
    if len(hosts) <= MOST_RANKS:
        return list(range(len(hosts)))
    first = [rank for rank, host in enumerate(hosts) if hosts.index(host) == rank]
    return first[:MOST_HOSTS] if len(first) > 1 else list(range(MOST_RANKS))


def rounds(ranks: list[int]) -> Iterator[list[tuple[int, int]]]:
    """All pairs, one at a time; with more than 16 hosts, as many disjoint pairs at a time as possible."""
    if len(ranks) <= MOST_RANKS:
        yield from ([(a, b)] for at, a in enumerate(ranks) for b in ranks[at + 1 :])
        return
    # The circle method of round-robin tournaments: one place is fixed, the others rotate.
    places: list[Any] = [*ranks, *([None] if len(ranks) % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        met = [(places[at], places[-1 - at]) for at in range(half)]
        yield [(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None]
        places = [places[0], places[-1], *places[1:-1]]
