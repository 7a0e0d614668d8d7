"""Detects the host with a slow network from the bytes queued for sending on each host. Pure.

A slow link makes no rank late: all ranks arrive at a collective in time, and all spend longer in it. But bytes pile up
in the socket queues at both ends of the link: on its host, and on the hosts that send to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.text import rank_list

WAITING = 0.25
"""Minimum share of time that every rank spends in collectives before the network is examined."""

SLOWER = 1.1
"""Ratio of the current to the best step time above which the network is examined soon rather than occasionally."""

QUEUED = 32_768
"""Minimum number of queued bytes on average; any active connection has fewer."""

PART = 0.8
"""Share of all queued bytes that must go to or come from one host."""


@dataclass(frozen=True, kw_only=True)
class SlowNetwork:
    """The hosts where queued bytes pile up."""

    hosts: tuple[str, ...]
    """One host, or two if it is unknown which of them is at fault."""
    queued: float


def slow_network(queues: Mapping[str, Mapping[str, float]], addresses: Mapping[str, str]) -> SlowNetwork | None:
    """The host at one end of nearly all queued bytes, if there is one.

    `queues` has the average queued bytes by host and destination address, `addresses` the host of each address.
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
