"""Which host's network all ranks wait for: from the bytes that wait to be sent, host by host. Pure.

A slow link makes nobody late: all ranks come to a collective in time, and all of them sit in it for longer. But what
cannot be sent piles up in the sockets at both ends of it: on its host, and on those that send to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.text import rank_list

WAITING = 0.25
"""Share of the time that every rank must spend in collectives before the network is looked at."""

SLOWER = 1.1
"""Times as long as they took at their best, that steps take when it is looked at soon; else once in a while."""

QUEUED = 32_768
"""Bytes on average that must wait to be sent: less is what any connection has under way."""

PART = 0.8
"""Of all that waits, which must go to or come from one host."""


@dataclass(frozen=True, kw_only=True)
class SlowNetwork:
    """Where what is to be sent piles up."""

    hosts: tuple[str, ...]
    """One host, or two of which it cannot be told whose fault it is."""
    queued: float


def slow_network(queues: Mapping[str, Mapping[str, float]], addresses: Mapping[str, str]) -> SlowNetwork | None:
    """The host at one end of nearly all that waits, if there is one.

    `queues` is by host and address the bytes that waited to be sent there on average, `addresses` whose those are.
    """
    edges: dict[tuple[str, str], float] = {}
    for host, by_address in queues.items():
        for address, queued in by_address.items():
            other = addresses.get(address)
            if other is not None and other != host:
                edges[host, other] = edges.get((host, other), 0.0) + queued
    total = sum(edges.values())
    if total < QUEUED:
        return None
    share = {host: sum(edges[edge] for edge in edges if host in edge) / total for edge in edges for host in edge}
    blamed = tuple(sorted(host for host in share if share[host] >= PART))
    return SlowNetwork(hosts=blamed, queued=total) if blamed else None


def sentence(found: SlowNetwork, *, step: float, best: float, waiting: float, ranks: Sequence[int]) -> str:
    """`the network of h2 is slowing the job down: …`."""
    where = f"of {found.hosts[0]}" if len(found.hosts) == 1 else f"between {' and '.join(found.hosts)}"
    at_best = f" ({best:.2f} s at best)" if step >= SLOWER * best else ""
    times = f"{step:.2f} s per step{at_best}, {waiting * 100:.0f} % of it in collectives"
    queued = f"{found.queued / 1e3:.0f} kB are queued to be sent on average"
    return f"the network {where} ({rank_list(ranks)}) is slowing the job down: {times}; {queued}"
