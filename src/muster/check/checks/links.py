"""The network cards that hosts meet over are alike: packet size, speed, and no errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster, odd_ones
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

HOLE = "the start looks fine, then the first large all_reduce: Timed out waiting 1800000ms for recv operation"
SLOW = "every step waits for that host, without a message"

FEWEST_ERRORS = 1000
WORST_SHARE = 1e-4


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: each card with its network, packet size, speed and errors."""
    import fcntl
    import os
    import socket
    import struct

    def read(name: str, what: str) -> int:
        try:
            with open(f"/sys/class/net/{name}/{what}") as file:
                return int(file.read())
        except (OSError, ValueError):
            return -1

    cards: dict[str, Any] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name in sorted(os.listdir("/sys/class/net")):
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = fcntl.ioctl(sock, 0x8915, request)[20:24]  # SIOCGIFADDR
                mask = fcntl.ioctl(sock, 0x891B, request)[20:24]  # SIOCGIFNETMASK
            except OSError:
                continue
            network = bytes(one & other for one, other in zip(address, mask))
            cards[name] = {
                "address": socket.inet_ntoa(address),
                "network": f"{socket.inet_ntoa(network)}/{bin(int.from_bytes(mask, 'big')).count('1')}",
                "mtu": read(name, "mtu"),
                "speed": read(name, "speed"),
                "errors": read(name, "statistics/rx_errors"),
                "packets": read(name, "statistics/rx_packets"),
            }
    return cards


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Hosts of one network are compared with each other; --deep sends real packets."""
    used = _used(cluster)
    for network in dict.fromkeys(card["network"] for card in used.values()):
        members = {name: card for name, card in used.items() if card["network"] == network}
        common, others = odd_ones({name: int(card["mtu"]) for name, card in members.items()})
        for name, mtu in others.items():
            card = members[name]["name"]
            # row 15
            yield Finding(
                severity="warning",
                hosts=(name,),
                what=f"{card} sends packets of up to {mtu} bytes, the others in {network} {common}",
                symptom=HOLE,
                fix=Fix(command=f"{cluster.sudo(name)}ip link set {card} mtu {common}", on=name),
                row=15,
            )
        usual = max((card["speed"] for card in members.values()), default=0)
        for name, card in members.items():
            if 0 < card["speed"] < 0.7 * usual:
                # row 17
                yield Finding(
                    severity="warning",
                    hosts=(name,),
                    what=f"{card['name']} runs at {card['speed']} Mbit/s, the others' at up to {usual}",
                    symptom=SLOW,
                    fix=Fix(say="see to its cable, switch port and VLAN", command=f"ethtool {card['name']}", on=name),
                    row=17,
                )
            if card["errors"] > max(FEWEST_ERRORS, WORST_SHARE * card["packets"]):
                # row 16
                yield Finding(
                    severity="warning",
                    hosts=(name,),
                    what=f"{card['name']} has received {card['errors']} broken packets of {card['packets']}",
                    symptom=SLOW,
                    fix=Fix(say="replace its cable", command=f"ip -s link show {card['name']}", on=name),
                    row=16,
                )


def _used(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The card each host is reached over."""
    used: dict[str, dict[str, Any]] = {}
    for name, cards in cluster.answers("links").items():
        address = cluster.address(name)
        for nic, card in cards.items():
            if card["address"] == address:
                used[name] = {**card, "name": nic}
    return used


def table(answer: dict[str, Any]) -> dict[str, str]:
    """Facts for people."""
    told: list[str] = []
    for name, card in answer.items():
        if name != "lo":
            speed = f" {card['speed'] / 1000:g} Gbit/s" if card["speed"] > 0 else ""
            told.append(f"{name}{speed} mtu {card['mtu']}")
    return {"network": ", ".join(told) or "loopback only"}


CHECK = Check(probe=probe, judge=judge, table=table)
