"""The faults of a cable, and the input for ip, tc and nft that creates them; pure text, nothing is run here.

A cable is a veth pair: `eth0` in the host and `v-NAME`, a port of the bridge, in the switch. All its faults are
one value, `Link`, and each change applies the whole value: faults add up, and `Link()` is a healthy cable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

NETWORK = "10.77.0"
"""The first three numbers of every lab address; labs can share it because their switches are separate."""

SWITCH_ADDRESS = f"{NETWORK}.254"
"""The address of the switch itself, from which the owner reaches the hosts."""

MAX_HOSTS = 253
"""The number of addresses besides that of the switch."""

MOST_HOSTS_THAT_ASK = 16
"""Labs of up to this many hosts use ARP."""

TABLE = "muster_lab"

Direction = Literal["in", "out"]
Refusal = Literal["reject", "drop"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A TCP port that a firewall on the host blocks."""

    port: int
    how: Refusal = "reject"
    direction: Direction = "in"


@dataclass(frozen=True, kw_only=True)
class Link:
    """The faults of one host's cable."""

    cut: bool = False
    loss_percent: float = 0.0
    rate: str | None = None
    delay_ms: float = 0.0
    blocks: tuple[Block, ...] = ()

    def describe(self) -> tuple[str, ...]:
        """Each fault in a few words, for the status table."""
        said = {
            "cut": self.cut,
            f"loss {self.loss_percent:g}%": self.loss_percent,
            f"rate {self.rate}": self.rate,
            f"delay {self.delay_ms:g} ms": self.delay_ms,
        }
        ports = (f"port {b.port} {b.direction} {b.how}" for b in self.blocks)
        return (*(text for text, applies in said.items() if applies), *ports)


def port_of(name: str) -> str:
    """The switch's end of a host's cable."""
    return f"v-{name}"


def near_end(name: str) -> str:
    """The host's end of the veth pair that connects a slow wire to the bridge."""
    return f"x-{name}"


def far_end(name: str) -> str:
    """The bridge's end of that pair."""
    return f"y-{name}"


def mac_of(address: str) -> str:
    """A fixed MAC address: if it changed with a reboot, peers would use a stale ARP entry."""
    return f"02:77:00:00:00:{int(address.rsplit('.', 1)[1]):02x}"


def neighbors(addresses: Mapping[str, str]) -> str:
    """`ip` batch for every host of a big lab: the MAC addresses of all others, so that none needs ARP.

    The kernel keeps the results of ARP in one table for the whole machine, with 1024 entries by default
    (net.ipv4.neigh.default.gc_thresh3); 48 hosts that all connected to each other overflowed it, and connections
    failed. Small labs use ARP, because then a dead host is "No route to host" after 3 s, as on a real network.
    """
    if len(addresses) <= MOST_HOSTS_THAT_ASK:
        return ""
    return "".join(
        f"neigh replace {address} lladdr {mac_of(address)} dev eth0 nud permanent\n" for address in addresses.values()
    )


def plug(inits: Mapping[str, int], addresses: Mapping[str, str]) -> str:
    """`ip` batch, run in the switch: a cable from the bridge to each host, whose init has the given pid."""
    lines: list[str] = []
    for name, init in inits.items():
        port = port_of(name)
        lines.append(f"link add {port} type veth peer name eth0 address {mac_of(addresses[name])} netns {init}")
        lines.append(f"link set {port} addrgenmode none master br0 up")
    return "\n".join(lines) + "\n"


def unplug(names: Iterable[str]) -> str:
    """`ip` batch, run in the switch with -force: remove the cables of hosts, dead or alive."""
    return "".join(f"link del {end}\n" for name in names for end in (port_of(name), near_end(name)))


def carrier(name: str, link: Link) -> str:
    """`ip` batch, run in the switch: a cut cable is a port that is down, so the host sees no carrier."""
    return f"link set {port_of(name)} {'down' if link.cut else 'up'}\n"


def host_rules(link: Link) -> str:
    """`nft` input for the host: loss of incoming frames, and blocked ports."""
    rules = _fresh_table("netdev", TABLE, _loss_chain("eth0", link.loss_percent))
    chains = [
        _port_chain(hook, match, [b for b in link.blocks if b.direction == direction])
        for direction, hook, match in (("in", "input", "iifname"), ("out", "output", "oifname"))
    ]
    return rules + _fresh_table("inet", TABLE, "".join(chains))


def switch_rules(name: str, port: str, link: Link) -> str:
    """`nft` input for the switch: loss of frames from the host, which enter at `port`."""
    return _fresh_table("netdev", f"{TABLE}_{name}", _loss_chain(port, link.loss_percent))


def _fresh_table(family: str, table: str, chains: str) -> str:
    # Declared first, because deleting a table that does not exist is an error.
    text = f"table {family} {table}\ndelete table {family} {table}\n"
    return text + (f"table {family} {table} {{\n{chains}}}\n" if chains else "")


def _loss_chain(device: str, percent: float) -> str:
    if not percent:
        return ""
    return (
        f'chain loss {{\ntype filter hook ingress device "{device}" priority 0\n'
        f"numgen random mod 10000 < {round(percent * 100)} drop\n}}\n"
    )


def _port_chain(hook: str, match: str, blocks: list[Block]) -> str:
    if not blocks:
        return ""
    verdict = {"reject": "reject with tcp reset", "drop": "drop"}
    rules = "".join(f'{match} "eth0" tcp dport {b.port} {verdict[b.how]}\n' for b in blocks)
    return f"chain {hook} {{\ntype filter hook {hook} priority 0\n{rules}}}\n"


def shaping(device: str, link: Link, *, netem: bool) -> str:
    """`tc` batch, run at either end of the cable: the rate, and the delay if the kernel has netem."""
    if netem and link.delay_ms:
        rate = f" rate {link.rate}" if link.rate else ""
        discipline = f"netem limit 100000 delay {link.delay_ms:g}ms{rate}"
    elif link.rate:
        discipline = f"tbf rate {link.rate} burst 32k latency 400ms"
    else:
        discipline = "noqueue"
    return f"qdisc replace dev {device} root {discipline}\n"
