"""The network of this host: cards, name resolution and firewall."""

from __future__ import annotations

import fcntl
import glob
import os
import socket
import struct
import time

from ...shared.machine import hosts_entries
from .reading import find_program, read, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from ...shared.requests import Question
else:
    from ...shared.protocol import TypedDict

_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B

_PLUGIN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
)
"""Directories where packages install network plugins for NCCL."""

SLOW_LOOKUP = 0.5
"""Duration in seconds above which a lookup is slow."""

_MOST_LOOKUPS = 8
"""Maximum number of peer addresses that are looked up."""


class Card(TypedDict):
    """A network card with an IPv4 address: speed in Mbit/s, and received errors and packets; -1 if unknown."""

    address: str
    network: str
    mtu: int
    speed: int
    errors: int
    packets: int


class Rdma(TypedDict):
    """The ports (name, state, driver), whether libibverbs and NCCL's plugin exist, and the number of device files."""

    ports: list[dict[str, str]]
    verbs: bool
    plugin: bool
    devices: int


class OwnName(TypedDict):
    """A host's name, the addresses it resolves to, and those that /etc/hosts lists, alone or with localhost."""

    name: str
    addresses: list[str]
    listed: list[str]
    shared: list[str]


class Lookup(TypedDict):
    """The slowest lookup."""

    seconds: float
    what: str


class Firewall(TypedDict):
    """The tool that configures the firewall, and the nft chains that filter packets in each direction, in and out."""

    tool: str
    chains: dict[str, list[str]]


def links(ask: Question) -> dict[str, Card]:
    """Return each card with its network, MTU, speed and errors."""
    cards: dict[str, Card] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name in sorted(os.listdir("/sys/class/net")):
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]
                mask = fcntl.ioctl(sock, _SIOCGIFNETMASK, request)[20:24]
            except OSError:
                continue
            network = bytes(one & other for one, other in zip(address, mask))
            cards[name] = {
                "address": socket.inet_ntoa(address),
                "network": f"{socket.inet_ntoa(network)}/{bin(int.from_bytes(mask, 'big')).count('1')}",
                "mtu": _number(name, "mtu"),
                "speed": _number(name, "speed"),
                "errors": _number(name, "statistics/rx_errors"),
                "packets": _number(name, "statistics/rx_packets"),
            }
    return cards


def _number(card: str, what: str) -> int:
    text = read(f"/sys/class/net/{card}/{what}")
    return int(text) if text.isdigit() else -1


def hardware_addresses(ask: Question) -> list[str]:
    """Return the MAC addresses of physical cards; those of virtual cards may repeat across hosts."""
    found = [read(f"{os.path.dirname(path)}/address") for path in sorted(glob.glob("/sys/class/net/*/device"))]
    return [address for address in found if address.strip("0:")]


def rdma(ask: Question) -> Rdma:
    """Return the InfiniBand ports, and whether programs and NCCL can use them."""
    ports: list[dict[str, str]] = []
    for folder in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        device = folder.split("/")[4]
        driver = os.path.basename(os.path.realpath(f"/sys/class/infiniband/{device}/device/driver"))
        state = read(f"{folder}/state").partition(":")[2].strip().lower()
        ports.append({"name": f"{device}:{os.path.basename(folder)}", "state": state, "driver": driver})
    if not ports:
        return {"ports": [], "verbs": False, "plugin": False, "devices": 0}
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return {
        "ports": ports,
        "verbs": _has_verbs(),
        "plugin": any(glob.glob(f"{folder}/libnccl-net*.so*") for folder in (*folders, *_PLUGIN_FOLDERS)),
        "devices": len(glob.glob("/dev/infiniband/uverbs*")),
    }


def _has_verbs() -> bool:
    import ctypes  # needed only on hosts with InfiniBand

    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return False
    return True


def master(ask: Question) -> list[str] | None:
    """Return what --master-addr resolves to on this host, or None if it was not given."""
    return _addresses(ask["master"]) if ask["master"] else None


def own_name(ask: Question) -> OwnName:
    """Return this host's name, what it resolves to, and how /etc/hosts lists it."""
    name = os.uname().nodename
    mine = hosts_entries(name)
    return {
        "name": name,
        "addresses": _addresses(name),
        "listed": [words[0] for words in mine],
        "shared": [words[0] for words in mine if "localhost" in words],
    }


def _addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def names(ask: Question) -> Lookup:
    """Return the slowest lookup of this host's name or a peer's address; torch looks up each peer that connects."""
    slowest, what = 0.0, ""
    addresses = [address for found in ask["peers"].values() for address in found]
    for word in [os.uname().nodename, *addresses[:_MOST_LOOKUPS]]:
        taken = _lookup_seconds(word)
        if taken > SLOW_LOOKUP:  # a busy host is slow once, a slow resolver every time
            taken = min(taken, _lookup_seconds(word))
        if taken > slowest:
            slowest, what = taken, word
        if slowest > SLOW_LOOKUP:
            break
    return {"seconds": slowest, "what": what}


def _lookup_seconds(word: str) -> float:
    begin = time.monotonic()
    try:
        if word == os.uname().nodename:
            socket.getaddrinfo(word, None)
        else:
            socket.getnameinfo((word, 0), 0)
    except OSError:
        pass
    return time.monotonic() - begin


def firewall(ask: Question) -> Firewall:
    """Return the firewall tool of this host and, for root, the chains that filter packets."""
    chains: dict[str, list[str]] = {"in": [], "out": []}
    nft = find_program("nft", "/usr/sbin", "/sbin")
    if "ENABLED=yes" in read("/etc/ufw/ufw.conf"):
        tool = "ufw"
    elif os.path.exists("/run/firewalld.pid"):
        tool = "firewalld"
    else:
        tool = "nft" if nft else "iptables"
    if tool == "nft" and os.getuid() == 0:
        table = chain = ""
        for line in run(nft, "list", "chains", timeout=2)[1].splitlines():
            words = line.split()
            if words[:1] == ["table"]:
                table = f"{words[1]} {words[2]}"
            elif words[:1] == ["chain"]:
                chain = words[1]
            elif words[:2] == ["type", "filter"] and table.startswith(("ip ", "inet ")):
                for hook, direction in (("input", "in"), ("output", "out")):
                    if words[3] == hook:
                        chains[direction].append(f"{table} {chain}")
    return {"tool": tool, "chains": chains}
