"""What a link should give, from what the machines say about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.bench.measurements import Carrier, Rank, Report
from muster.text import bit_rate_text, rate_text

_TCP = 52
"""Bytes of IPv4 and TCP headers with timestamps in each packet."""

_ETHERNET = 38
"""Bytes on the wire around each packet: preamble, header, checksum, gap."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What the links between ranks can carry, and how that is known."""

    rate: float | None
    """Bytes per second each way; None when nobody says it."""
    sentence: str


def payload(carrier: Carrier) -> float | None:
    """Bytes per second of user data that a link carries; None where its speed is unknown or only a word."""
    if carrier.speed is None or carrier.virtual:
        return None
    share = (carrier.mtu - _TCP) / (carrier.mtu + _ETHERNET) if carrier.mtu else 1.0
    return carrier.speed / 8 * share


def network_limit(report: Report) -> Limit:
    """What a host's network can carry: that of the slowest host."""
    by_host = {rank.host: rank.carriers for rank in report.ranks}
    why = next(filter(None, (_why_unknown(host, carriers) for host, carriers in by_host.items())), "")
    if why:
        return Limit(rate=None, sentence=f"What the network should give is not known: {why}.")
    rates = {host: sum(payload(carrier) or 0.0 for carrier in carriers) for host, carriers in by_host.items()}
    slowest = min(rates, key=lambda host: rates[host])
    links = " and ".join(f"{carrier.name} ({bit_rate_text(carrier.speed or 0.0)})" for carrier in by_host[slowest])
    kinds = {tuple((carrier.name, carrier.speed) for carrier in carriers) for carriers in by_host.values()}
    whose = "every host" if len(kinds) == 1 else f"{slowest}, the slowest"
    sentence = f"The network of {whose} is {links}, which carries {rate_text(rates[slowest])} of data each way."
    return Limit(rate=rates[slowest], sentence=sentence)


def inside_limit(report: Report) -> Limit:
    """What ranks of one host should give each other."""
    first = report.ranks[0]
    if report.device == "cpu":
        copied = min(rank.copies["memory"] for rank in report.ranks)
        return Limit(
            rate=None,
            sentence=f"Between ranks of one host no wire is the limit but its memory: a plain copy runs at "
            f"{rate_text(copied)} here, and {report.backend} copies what it sends at least twice.",
        )
    if all(rank.nvlink for rank in report.ranks):
        worst = min(report.ranks, key=lambda rank: sum(rank.nvlink))
        sentence = f"Each GPU has {len(worst.nvlink)} NVLinks up, {rate_text(sum(worst.nvlink))} each way together."
        return Limit(rate=sum(worst.nvlink), sentence=sentence)
    if first.pcie is not None:
        slowest = min(rank.pcie or first.pcie for rank in report.ranks)
        return Limit(
            rate=slowest,
            sentence=f"No NVLink is up: data goes over PCIe, {rate_text(slowest)} each way for a GPU.",
        )
    return Limit(
        rate=None,
        sentence="What the links between the GPUs should give is not known: the machine shows no NVLink or PCIe speed.",
    )


def limit_of(report: Report) -> Limit:
    """What the ranks should give each other: over the network if there are several hosts."""
    return network_limit(report) if len(report.hosts) > 1 else inside_limit(report)


def copies_sentence(rank: Rank) -> str:
    """How fast one GPU is filled and emptied, beside what its PCIe link can do."""
    link = f" (its PCIe link: {rate_text(rank.pcie)} each way)" if rank.pcie is not None else ""
    return (
        f"{rate_text(rank.copies['to_gpu'])} from the host to the GPU and {rate_text(rank.copies['from_gpu'])} "
        f"back{link}, {rate_text(rank.copies['in_gpu'])} from one place in the GPU to another"
    )


def _why_unknown(host: str, carriers: Sequence[Carrier]) -> str:
    """Why nobody knows what a host's network carries; empty where it is known."""
    if not carriers:
        return f"no interface of {host} counted the data"
    carrier = next((carrier for carrier in carriers if payload(carrier) is None), None)
    if carrier is None:
        return ""
    if carrier.virtual and carrier.speed is not None:
        word = bit_rate_text(carrier.speed)
        return f"{carrier.name} of {host} is virtual, and the {word} that it claims bind nobody"
    return f"{carrier.name} of {host} does not say its speed"
