"""The expected bandwidth of a link, from what the hosts report about it."""

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
    """The capacity of the links between ranks, and a sentence that explains it."""

    rate: float | None
    """Bytes per second each way, or None if unknown."""
    sentence: str


def payload(carrier: Carrier) -> float | None:
    """Bytes per second of user data that a link can carry, or None if its speed is unknown or not a real one."""
    if carrier.speed is None or carrier.virtual:
        return None
    share = (carrier.mtu - _TCP) / (carrier.mtu + _ETHERNET) if carrier.mtu else 1.0
    return carrier.speed / 8 * share


def network_limit(report: Report) -> Limit:
    """The network capacity of the slowest host."""
    by_host = {rank.host: rank.carriers for rank in report.ranks}
    why = next(filter(None, (_why_unknown(host, carriers) for host, carriers in by_host.items())), "")
    if why:
        return Limit(rate=None, sentence=f"The expected network bandwidth is unknown: {why}.")
    rates = {host: sum(payload(carrier) or 0.0 for carrier in carriers) for host, carriers in by_host.items()}
    slowest = min(rates, key=lambda host: rates[host])
    links = " and ".join(f"{carrier.name} ({bit_rate_text(carrier.speed or 0.0)})" for carrier in by_host[slowest])
    kinds = {tuple((carrier.name, carrier.speed) for carrier in carriers) for carriers in by_host.values()}
    whose = "every host" if len(kinds) == 1 else f"{slowest}, the slowest"
    sentence = f"The network of {whose} is {links}, which can carry {rate_text(rates[slowest])} of data each way."
    return Limit(rate=rates[slowest], sentence=sentence)


def inside_limit(report: Report) -> Limit:
    """The capacity between ranks of one host."""
    first = report.ranks[0]
    if report.device == "cpu":
        copied = min(rank.copies["memory"] for rank in report.ranks)
        return Limit(
            rate=None,
            sentence="Between ranks of one host the limit is memory, not a network: a plain copy runs at "
            f"{rate_text(copied)}, and {report.backend} copies what it sends at least twice.",
        )
    if all(rank.nvlink for rank in report.ranks):
        worst = min(report.ranks, key=lambda rank: sum(rank.nvlink))
        sentence = f"Each GPU has {len(worst.nvlink)} active NVLinks, {rate_text(sum(worst.nvlink))} each way in total."
        return Limit(rate=sum(worst.nvlink), sentence=sentence)
    if first.pcie is not None:
        slowest = min(rank.pcie or first.pcie for rank in report.ranks)
        return Limit(
            rate=slowest,
            sentence=f"No NVLink is active: data goes over PCIe, {rate_text(slowest)} each way per GPU.",
        )
    return Limit(
        rate=None,
        sentence="The expected bandwidth between the GPUs is unknown: the host reports no NVLink or PCIe speed.",
    )


def limit_of(report: Report) -> Limit:
    """The capacity between the ranks: that of the network if there are several hosts."""
    return network_limit(report) if len(report.hosts) > 1 else inside_limit(report)


def copies_sentence(rank: Rank) -> str:
    """The copy rates of a GPU, with the capacity of its PCIe link."""
    link = f" (its PCIe link: {rate_text(rank.pcie)} each way)" if rank.pcie is not None else ""
    return (
        f"{rate_text(rank.copies['to_gpu'])} from the host to the GPU and {rate_text(rank.copies['from_gpu'])} "
        f"back{link}, {rate_text(rank.copies['in_gpu'])} within the GPU's memory"
    )


def _why_unknown(host: str, carriers: Sequence[Carrier]) -> str:
    """Why the capacity of a host's network is unknown, or an empty string."""
    if not carriers:
        return f"no network interface of {host} counted the data"
    carrier = next((carrier for carrier in carriers if payload(carrier) is None), None)
    if carrier is None:
        return ""
    if carrier.virtual and carrier.speed is not None:
        speed = bit_rate_text(carrier.speed)
        return f"{carrier.name} of {host} is virtual, so the {speed} that it reports is not a real limit"
    return f"{carrier.name} of {host} does not report its speed"
