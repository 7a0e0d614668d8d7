"""The rendezvous address: addresses tried from every host, and the network interface each host must use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.errors import HostError, UsageError
from muster.shared.host_state import Interface
from muster.shared.replies import DialResult
from muster.shared.requests import DialTarget

_ALL_PAIRS = 16
"""Up to this many hosts, every host dials every other; above, each dials the master and a few neighbors."""

_VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman", "tailscale", "tun", "tap")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One host and the addresses where others may reach it."""

    name: str
    interfaces: Sequence[Interface]
    own_name: Sequence[str]
    """The addresses to which the host resolves its own name, in the order of gloo."""
    port: int
    nonce: str

    def candidates(self, interface: str | None) -> list[str]:
        """Addresses to try, the likely ones first; only those of `interface` if given."""
        if interface is not None:
            chosen = [nic for nic in self.interfaces if nic["name"] == interface]
            if not chosen:
                names = ", ".join(nic["name"] for nic in self.interfaces)
                raise UsageError(
                    f"--interface {interface}: {self.name} has no such network interface", hint=f"it has {names}"
                )
            if not chosen[0]["addresses"]:
                have = ", ".join(nic["name"] for nic in self.interfaces if nic["addresses"] and not nic["loopback"])
                raise UsageError(
                    f"--interface {interface}: {self.name} has no address on it", hint=f"it has addresses on {have}"
                )
            return list(chosen[0]["addresses"])
        usable = [nic for nic in self.interfaces if not nic["loopback"] and nic["addresses"]]
        usable.sort(key=lambda nic: nic["name"].startswith(_VIRTUAL))
        return [address for nic in usable for address in nic["addresses"]]

    def interface_of(self, address: str) -> str | None:
        """The interface that has an address."""
        return next((nic["name"] for nic in self.interfaces if address in nic["addresses"]), None)

    def target(self, address: str) -> DialTarget:
        """The target that another host dials."""
        return {"host": self.name, "address": address, "port": self.port, "nonce": self.nonce}

    @property
    def gloo_address(self) -> str | None:
        """The address gloo would choose: the first own address that the hostname resolves to."""
        own = {address for nic in self.interfaces for address in nic["addresses"]}
        return next((address for address in self.own_name if address in own or address.startswith("127.")), None)

    @property
    def nccl_interface(self) -> str | None:
        """The interface NCCL would choose: InfiniBand first, then any except loopback and docker."""
        usable = [nic for nic in self.interfaces if not nic["loopback"] and nic["addresses"]]
        usable.sort(key=lambda nic: (not nic["name"].startswith("ib"), nic["name"].startswith("docker")))
        return usable[0]["name"] if usable else None


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The result: the address of rank 0, and per host the interface to set, if any."""

    master_addr: str
    interfaces: Mapping[str, str]
    reasons: Mapping[str, str]


def who_dials_whom(count: int) -> list[list[int]]:
    """For each host, the hosts it dials."""
    if count <= _ALL_PAIRS:
        return [[j for j in range(count) if j != i] for i in range(count)]
    steps = (1, 2, count // 2)
    return [sorted({0, *((i + step) % count for step in steps)} - {i}) for i in range(count)]


def dial_targets(
    offers: Sequence[Offer], peers: Sequence[int], *, interface: str | None, master: str | None
) -> list[DialTarget]:
    """The targets one host dials; an address the user gave for the master is tried like the others."""
    targets: list[DialTarget] = []
    for peer in peers:
        offer = offers[peer]
        addresses = offer.candidates(interface)
        if peer == 0 and master is not None and master not in addresses:
            addresses = [master, *addresses]
        targets += [offer.target(address) for address in addresses]
    return targets


def choose(
    offers: Sequence[Offer],
    tried: Mapping[str, Sequence[DialResult]],
    *,
    interface: str | None,
    master: str | None,
) -> Meeting:
    """Choose the master address and the interfaces from the results of every host; pure.

    `tried` maps the dialing host to its results: host, address, problem ("" when reached).
    """
    good = {offer.name: _reached_by_all(offer, tried, interface) for offer in offers}
    for offer in offers:
        if not good[offer.name]:
            raise _unreachable(offer, tried)
    first = offers[0]
    if master is not None:
        check_users_master(first, master, tried)
        address = master
    else:
        preferred = first.gloo_address
        address = preferred if preferred in good[first.name] else good[first.name][0]
    interfaces: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for offer in offers:
        name, why = interface, "--interface"
        if name is None:
            name, why = offer.interface_of(good[offer.name][0]), _default_is_wrong(offer, good[offer.name])
        if name is not None and why:
            interfaces[offer.name], reasons[offer.name] = name, why
    return Meeting(master_addr=address, interfaces=interfaces, reasons=reasons)


def alone(offer: Offer, *, interface: str | None) -> Meeting:
    """One host only: use loopback, whatever the hostname resolves to."""
    name, why = interface, "--interface"
    if interface is not None:
        offer.candidates(interface)
    elif offer.gloo_address is None:
        name = next((nic["name"] for nic in offer.interfaces if nic["loopback"]), None)
        why = "its hostname does not resolve to one of its own addresses"
    if name is None:
        return Meeting(master_addr="127.0.0.1", interfaces={}, reasons={})
    return Meeting(master_addr="127.0.0.1", interfaces={offer.name: name}, reasons={offer.name: why})


def _reached_by_all(offer: Offer, tried: Mapping[str, Sequence[DialResult]], interface: str | None) -> list[str]:
    good: list[str] = []
    for address in offer.candidates(interface):
        problems = [
            result["problem"]
            for results in tried.values()
            for result in results
            if result["host"] == offer.name and result["address"] == address
        ]
        if problems and not any(problems):
            good.append(address)
    return good


def _default_is_wrong(offer: Offer, good: Sequence[str]) -> str:
    """Why the ranks of this host would advertise an unreachable address; empty if they would not."""
    gloo = offer.gloo_address
    if gloo is None:
        return "its hostname does not resolve to one of its own addresses"
    if gloo not in good:
        return f"its hostname resolves to {gloo}, which other hosts cannot reach"
    nccl = offer.nccl_interface
    if nccl is not None and nccl not in {offer.interface_of(address) for address in good}:
        return f"other hosts cannot reach it over {nccl}"
    return ""


def _unreachable(offer: Offer, tried: Mapping[str, Sequence[DialResult]]) -> HostError:
    lines: list[str] = []
    for dialer, results in tried.items():
        failed = [result for result in results if result["host"] == offer.name and result["problem"]]
        if failed:
            lines.append(f"{dialer} tried " + ", ".join(f"{r['address']} ({r['problem']})" for r in failed))
    found = "; ".join(lines[:4]) or "it has only a loopback address"
    return HostError(
        offer.name,
        f"other hosts cannot connect to it: {found}",
        hint="allow TCP connections between the hosts, or choose a network interface with `--interface NAME`",
    )


def check_users_master(first: Offer, master: str, tried: Mapping[str, Sequence[DialResult]]) -> None:
    """Reject a --master-addr that does not reach the first host from every host."""
    for dialer, results in tried.items():
        for result in results:
            if result["host"] == first.name and result["address"] == master and result["problem"]:
                raise HostError(
                    dialer,
                    f"--master-addr {master} does not reach {first.name} from this host ({result['problem']})",
                    hint="omit --master-addr, and Muster finds an address that every host can reach",
                )
