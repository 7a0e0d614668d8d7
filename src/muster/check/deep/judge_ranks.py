"""Judge what the ranks measured; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from muster.agent.probes import host_network
from muster.check.checks import rdma
from muster.check.checks.links import HOLE, SLOW, card_of
from muster.check.cluster_facts import Cluster
from muster.check.finding import Finding, Findings, Fix
from muster.text import bit_rate_text, names, size_text

WRONG = "the loss becomes NaN or the model does not learn, without any message"

LOST = 0.005
"""Fraction of retransmitted packets above which a link is bad; a healthy link has almost none."""

FEWEST_LOST = 20

SLOW_LINK = 0.5
"""Fraction of the other hosts' rate below which a link is slow: half, since shared networks vary by a third."""

SLOW_PAIR = 0.05
"""Fraction of the nominal speed below which a pair is slow; low, because virtual cards report arbitrary speeds."""

SLOW_GPU = 0.8
SLOW_CPU = 0.2
"""Fractions of the other ranks' speed: GPUs differ by a few percent, CPUs may be shared."""

Pair = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Link:
    """The measured link from one host to another."""

    sender: str
    receiver: str
    times: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds until a message was acknowledged, by its size in bytes."""
    hole: int | None = None
    """Size in bytes of the first message that was not acknowledged."""
    problem: str | None = None
    """Why the connection failed."""
    rate: float = 0.0
    """Bytes per second under load."""
    sent: int = 0
    again: int = 0
    """Number of packets retransmitted under load, out of `sent`."""

    @property
    def pair(self) -> Pair:
        """Both hosts."""
        return frozenset((self.sender, self.receiver))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one rank measured; collectives are skipped if any link is broken."""

    rank: int
    host: str
    links: Sequence[Link]
    device: str
    flops: float
    right: bool
    all_reduce: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds per all_reduce, by size in bytes."""
    wrong: Sequence[int] = ()
    """Sizes in bytes at which the sum was wrong."""
    network: str = ""
    """The network that NCCL uses."""


def with_names(results: Sequence[Any], hosts: Sequence[str]) -> list[Result]:
    """Convert results from JSON, replacing host numbers by names."""

    def link(sender: int, receiver: int, **measured: Any) -> Link:
        return Link(sender=hosts[sender], receiver=hosts[receiver], **measured)

    def result(host: int, links: list[Any], **measured: Any) -> Result:
        return Result(host=hosts[host], links=[link(**one) for one in links], **measured)

    return [result(**one) for one in results]


def judge(cluster: Cluster, results: Sequence[Result]) -> Findings:
    """All findings of the deep check."""
    links = [link for result in results for link in result.links]
    for finding in (
        *_holes(cluster, links),
        *_losses(links),
        *_slow_links(cluster, links),
        *_devices(results),
        *_collectives(cluster, results),
    ):
        yield replace(finding, check="deep")


def culprits(bad: Sequence[Pair], pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Attribute bad links to a host if all its links are bad, otherwise to the pairs."""
    left = list(dict.fromkeys(bad))
    named: list[tuple[str, ...]] = []
    hosts = list(dict.fromkeys(host for pair in pairs for host in sorted(pair)))
    if len(hosts) > 2:
        # The host with the most bad links comes first, because it explains those of its peers.
        for host in sorted(hosts, key=lambda host: -sum(host in pair for pair in left)):
            own = {pair for pair in pairs if host in pair}
            if own and own <= set(bad) and any(host in pair for pair in left):
                named.append((host,))
                left = [pair for pair in left if host not in pair]
    return named + [tuple(sorted(pair)) for pair in left]


def _of(culprit: tuple[str, ...], bad: Sequence[Link]) -> Link:
    """A bad link that belongs to a culprit."""
    return next(link for link in bad if frozenset(culprit) <= link.pair)


def _holes(cluster: Cluster, links: Sequence[Link]) -> Findings:
    bad = [link for link in links if link.hole is not None or link.problem is not None]
    for culprit in culprits([link.pair for link in bad], [link.pair for link in links]):
        link = _of(culprit, bad)
        way = f"from {link.sender} to {link.receiver}"
        if link.hole is not None and link.times:
            passed = list(link.times)[-1]
            what = f"messages of {link.hole} bytes do not get through {way}, although {passed} bytes do"
            fix = _smaller_packets(cluster, int(passed))
        else:
            what = f"nothing gets through {way} ({link.problem or 'no answer'})"
            fix = Fix(say="check the network between them")
        yield Finding("error", culprit, what, HOLE, fix, row=15)


def _smaller_packets(cluster: Cluster, passed: int) -> Fix:
    """Set an MTU that is known to work on every host."""
    mtu = max(576, passed + 50)
    used = [found[1]["mtu"] for machine in cluster.machines if (found := card_of(cluster, machine.name))]
    if used and max(used) <= mtu:
        return Fix(say="check the network between them; their MTU is already small enough")
    lines: list[str] = []
    for machine in cluster.machines:
        address = cluster.address(machine.name)
        card = next((nic["name"] for nic in machine.up["interfaces"] if address in nic["addresses"]), "eth0")
        command = f"{cluster.sudo(machine.name)}ip link set {card} mtu {mtu}"
        lines.append(cluster.line(Fix(command=command, on=machine.name)))
    say = "as a workaround until all hosts and switches have the same MTU and allow ICMP"
    return Fix(command=" && ".join(lines), say=say)


def _losses(links: Sequence[Link]) -> Findings:
    """Blame the host whose best link loses most packets, then repeat without it while the losses are similar."""
    left: list[Link] = [link for link in links if link.sent]
    worst = 0.0
    while left:
        hosts: list[str] = list(dict.fromkeys(end for link in left for end in (link.sender, link.receiver)))
        loss = {host: min(_lost(link, left) for link in _with(host, left)) for host in hosts}
        culprit = max(hosts, key=lambda host: loss[host])
        if loss[culprit] < max(LOST, worst / 3):
            return
        worst = max(worst, loss[culprit])
        link = max(_with(culprit, left), key=lambda link: _lost(link, left))
        blamed = (culprit,) if len(hosts) > 2 else tuple(hosts)
        what = f"{100 * _lost(link, left):.1f} % of packets between {link.sender} and {link.receiver} are lost"
        symptom = "collectives take several times as long, without any message"
        yield Finding("warning", blamed, what, symptom, Fix(say="replace the cable, or check the switch port"), row=16)
        left = [link for link in left if culprit not in link.pair]


def _with(host: str, links: Sequence[Link]) -> list[Link]:
    return [link for link in links if host in link.pair]


def _lost(link: Link, links: Sequence[Link]) -> float:
    """Fraction of packets lost between two hosts, in the worse direction."""
    both = [other for other in links if other.pair == link.pair]
    return max(other.again / other.sent if other.again >= FEWEST_LOST else 0.0 for other in both)


def _slow_links(cluster: Cluster, links: Sequence[Link]) -> Findings:
    """Compare each host's best link with the other hosts; with two hosts, compare with the speed of their cards."""
    best: dict[str, float] = {}
    for link in links:
        for host in (link.sender, link.receiver):
            best[host] = max(best.get(host, 0.0), link.rate)
    if len(best) == 2:
        yield from _slow_pair(cluster, best)
    if len(best) < 3:
        return
    for host, rate in best.items():
        usual = median([median_of(links, other, host) for other in best if other != host])
        if 0 < rate < SLOW_LINK * usual:
            what = f"network rate is {bit_rate_text(8 * rate)}; the other hosts reach {bit_rate_text(8 * usual)}"
            yield Finding("warning", (host,), what, SLOW, Fix(say="check its cable, switch port and VLAN"), row=17)


def _slow_pair(cluster: Cluster, best: Mapping[str, float]) -> Findings:
    """Report both hosts, because one link does not show which is at fault."""
    # A card reports its speed in Mbit/s, or -1 if unknown.
    speeds = [found[1]["speed"] if (found := card_of(cluster, host)) else 0 for host in best]
    promised = max(0, min(speeds)) * 125000.0
    rate = max(best.values())
    if 0 < rate < SLOW_PAIR * promised:
        what = f"network rate is {bit_rate_text(8 * rate)}; the network cards support {bit_rate_text(8 * promised)}"
        fix = Fix(say="check their cables, switch ports and VLANs")
        yield Finding("warning", tuple(best), what, SLOW, fix, row=17)


def median_of(links: Sequence[Link], host: str, without: str) -> float:
    """The median rate of a host's links, excluding those to one host."""
    rates = [link.rate for link in links if host in link.pair and without not in link.pair]
    return median(rates) if rates else 0.0


def _devices(results: Sequence[Result]) -> Findings:
    for result in results:
        hosts, device, flops = (result.host,), result.device, result.flops
        alike = [other.flops for other in results if other.device == device and other is not result]
        usual = median(alike) if alike else 0.0
        least, row = (SLOW_CPU, 30) if device == "CPU" else (SLOW_GPU, 48)
        if not result.right:
            what = f"the {device} of rank {result.rank} computes wrong products"
            yield Finding("error", hosts, what, WRONG, Fix(say="replace the device"), row=48)
        elif flops < least * usual:
            what = f"the {device} of rank {result.rank} reaches {_flops(flops)}; the others {_flops(usual)}"
            fix = Fix(say="check its cooling, power and clocks, and other processes on the host")
            yield Finding("warning", hosts, what, SLOW, fix, row)


def _collectives(cluster: Cluster, results: Sequence[Result]) -> Findings:
    for result in results:
        if result.wrong:
            sizes = names([str(size) for size in result.wrong])
            what = f"rank {result.rank} got a wrong sum from all_reduce of {sizes} bytes"
            fix = Fix(say="leave the host out of -H and test its memory")
            yield Finding("error", (result.host,), what, WRONG, fix, row=48)
    for host in dict.fromkeys(result.host for result in results if result.network == "Socket"):
        answer = cluster.machine(host).answer(host_network.rdma)
        if answer and answer["ports"]:
            what = "NCCL uses plain sockets although the host has InfiniBand"
            fix = Fix(say="run with NCCL_DEBUG=INFO to see why; usually a library, device or plugin is missing")
            yield Finding("warning", (host,), what, rdma.SYMPTOM, fix, row=18)


def table(results: Sequence[Result]) -> dict[str, dict[str, str]]:
    """What the deep check measured, for the report."""
    facts: dict[str, dict[str, str]] = {}
    for result in results:
        host = result.host
        rates = [link.rate for link in result.links if link.rate]
        if rates:
            facts.setdefault("network rate", {})[host] = bit_rate_text(8 * median(rates))
        facts.setdefault("matrix product", {}).setdefault(host, _flops(result.flops))
        if result.all_reduce and len(results) > 1:  # with one rank, all_reduce does nothing
            size, seconds = list(result.all_reduce.items())[-1]
            facts.setdefault(f"all_reduce of {size_text(int(size))}", {}).setdefault(host, f"{seconds * 1000:.1f} ms")
    return facts


def _flops(flops: float) -> str:
    return f"{flops / 1e12:.0f} TFLOP/s" if flops >= 1e13 else f"{flops / 1e9:.0f} GFLOP/s"
