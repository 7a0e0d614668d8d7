"""The network cards that connect the hosts have the same MTU and speed, and receive no broken packets."""

from __future__ import annotations

from muster.agent.probes import host_network
from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

HOLE = "the start looks fine, then the first large all_reduce: Timed out waiting 1800000ms for recv operation"
SLOW = "every step waits for that host, without any message"

FEWEST_ERRORS = 1000
WORST_SHARE = 1e-4


def judge(cluster: Cluster) -> Findings:
    """Compare hosts on the same network; --deep sends real packets."""
    used = {machine.name: card for machine in cluster.machines if (card := card_of(cluster, machine.name))}
    for network in dict.fromkeys(card["network"] for _, card in used.values()):
        members = {name: (nic, card) for name, (nic, card) in used.items() if card["network"] == network}
        common, others = odd_ones({name: card["mtu"] for name, (_, card) in members.items()})
        for name, mtu in others.items():
            nic = members[name][0]
            what = f"{nic} has MTU {mtu}; the other hosts in {network} have {common}"
            fix = Fix(command=f"{cluster.sudo(name)}ip link set {nic} mtu {common}", on=name)
            yield Finding("warning", (name,), what, HOLE, fix, row=15)
        usual = max((card["speed"] for _, card in members.values()), default=0)
        for name, (nic, card) in members.items():
            if 0 < card["speed"] < 0.7 * usual:
                what = f"{nic} runs at {card['speed']} Mbit/s; other hosts reach {usual} Mbit/s"
                fix = Fix(say="check its cable, switch port and VLAN", command=f"ethtool {nic}", on=name)
                yield Finding("warning", (name,), what, SLOW, fix, row=17)
            if card["errors"] > max(FEWEST_ERRORS, WORST_SHARE * card["packets"]):
                what = f"{nic} has received {card['errors']} broken packets out of {card['packets']}"
                fix = Fix(say="replace the cable", command=f"ip -s link show {nic}", on=name)
                yield Finding("warning", (name,), what, SLOW, fix, row=16)


def card_of(cluster: Cluster, host: str) -> tuple[str, host_network.Card] | None:
    """Name and facts of the network card other hosts use to reach a host, or None if unknown."""
    cards = cluster.machine(host).answer(host_network.links) or {}
    address = cluster.address(host)
    return next(((name, card) for name, card in cards.items() if card["address"] == address), None)


def table(answer: dict[str, host_network.Card]) -> dict[str, str]:
    """Facts for the report."""
    cards: list[str] = []
    for name, card in answer.items():
        if name != "lo":
            speed = f" {card['speed'] / 1000:g} Gbit/s" if card["speed"] > 0 else ""
            cards.append(f"{name}{speed} mtu {card['mtu']}")
    return {"network": ", ".join(cards) or "loopback only"}


CHECK = Check(probe=host_network.links, judge=judge, table=table)
