"""Finds outliers: hosts, links or GPUs that are slower than the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from muster.bench.measurement_table import directed, rank_names
from muster.bench.measurements import Report
from muster.text import duration, rate_text

ODD = 0.7
"""Fraction of the median below which a bandwidth is an outlier."""

SLOW = 3.0
"""Multiple of the median above which a latency is an outlier; latencies vary more than bandwidths."""

_MOST_NAMED = 5

_Key = TypeVar("_Key", str, tuple[str, str])


def odd_ones(report: Report) -> list[str]:
    """A sentence for each outlier; hosts come before links, so that the cause comes first."""
    return [*_network(report), *_inside(report), *_copies(report)]


def _network(report: Report) -> list[str]:
    """Compare hosts by the best link of each, because a slow host has no good link at all."""
    host_of = {rank.number: rank.host for rank in report.ranks}
    rates = (((host_of[a], host_of[b]), rate) for (a, b), rate in directed(report.pairs).items())
    times = (((host_of[pair.a], host_of[pair.b]), pair.latency) for pair in report.pairs)
    links = _by_key(max, ((link, rate) for link, rate in rates if link[0] != link[1]))
    latencies = _by_key(min, ((link, latency) for link, latency in times if link[0] != link[1]))
    said, senders, receivers = _odd_hosts(links)
    rest = {link: rate for link, rate in links.items() if link[0] not in senders and link[1] not in receivers}
    said += _odd_links({f"{a} to {b}": rate for (a, b), rate in rest.items()})
    return said + _late(latencies)


def _odd_hosts(links: Mapping[tuple[str, str], float]) -> tuple[list[str], list[str], list[str]]:
    sends, receives = (_by_key(max, ((link[end], rate) for link, rate in links.items())) for end in (0, 1))
    if len(sends) < 3:  # with two hosts it is unknown which one is slow
        return [], [], []
    senders, receivers = _below(sends), _below(receives)
    usual = {"sends": median(sends.values()), "receives": median(receives.values())}
    said: list[str] = []
    for host in sends:
        found = [
            f"{does} at most {rate_text(best[host])}, {_percent(best[host], usual[does])} of the median host"
            for does, best, odd in (("sends", sends, senders), ("receives", receives, receivers))
            if host in odd
        ]
        if found:
            said.append(f"{host} is slower than the other hosts: it {', and '.join(found)}.")
    return said, senders, receivers


def _odd_links(links: Mapping[str, float]) -> list[str]:
    usual = median(links.values()) if links else 0.0
    odd = _below(links)
    return _few(
        [
            f"{link} is a slow link: {rate_text(links[link])}, {_percent(links[link], usual)} of the median link."
            for link in sorted(odd, key=lambda link: links[link])
        ],
        "links",
    )


def _late(latencies: Mapping[tuple[str, str], float]) -> list[str]:
    nearest = _by_key(min, ((host, latency) for link, latency in latencies.items() for host in link))
    if len(nearest) < 3:
        return []
    usual = median(nearest.values())
    late = {host for host, latency in nearest.items() if latency > SLOW * usual}
    said = [
        f"{host} has a high latency: 8 bytes take at least {duration(nearest[host])}, vs. {duration(usual)} elsewhere."
        for host in nearest
        if host in late
    ]
    rest = {link: latency for link, latency in latencies.items() if not late & set(link)}
    usual = median(rest.values()) if rest else 0.0
    return said + _few(
        [
            f"{a} and {b} have a high latency: 8 bytes take {duration(latency)}, vs. {duration(usual)} elsewhere."
            for (a, b), latency in rest.items()
            if latency > SLOW * usual
        ],
        "links",
    )


def _inside(report: Report) -> list[str]:
    """Links between GPUs of a host; between processes on CPUs there is no physical link."""
    if report.device == "cpu":
        return []
    names = rank_names(report.ranks)
    host_of = {rank.number: rank.host for rank in report.ranks}
    links = {
        f"{names[a]} to {names[b]}": rate for (a, b), rate in directed(report.pairs).items() if host_of[a] == host_of[b]
    }
    return _odd_links(links) if len(links) > 2 else []


def _copies(report: Report) -> list[str]:
    said: list[str] = []
    for way, words in (("to_gpu", "receives data from"), ("from_gpu", "sends data to")):
        rates = {
            f"the GPU of rank {rank.number} on {rank.host}": rank.copies[way]
            for rank in report.ranks
            if way in rank.copies
        }
        said += _slower_than_others(rates, f"{words} its host")
    memory = _by_key(max, ((rank.host, rank.copies["memory"]) for rank in report.ranks if "memory" in rank.copies))
    return said + _slower_than_others(memory, "copies memory")


def _slower_than_others(rates: Mapping[str, float], does: str) -> list[str]:
    if len(rates) < 3:
        return []
    usual = median(rates.values())
    return [
        f"{who} {does} at {rate_text(rates[who])}, {_percent(rates[who], usual)} of the median."
        for who in _below(rates)
    ]


def _by_key(pick: Callable[[float, float], float], items: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    """The largest or smallest value of each key."""
    found: dict[_Key, float] = {}
    for key, value in items:
        found[key] = pick(value, found.get(key, value))
    return found


def _below(rates: Mapping[str, float]) -> list[str]:
    usual = median(rates.values()) if rates else 0.0
    return [name for name, rate in rates.items() if rate < ODD * usual]


def _percent(value: float, whole: float) -> str:
    return f"{100 * value / whole:.0f} %"


def _few(sentences: Sequence[str], what: str) -> list[str]:
    more = len(sentences) - _MOST_NAMED
    return [*sentences[:_MOST_NAMED], *([f"{more} more {what} like that."] if more > 0 else [])]
