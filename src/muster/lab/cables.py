"""Applies the faults described by `Link` values to the cables of a lab."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from muster.errors import LabError
from muster.lab import link_rules
from muster.lab.link_rules import Link
from muster.lab.namespaces import NamespaceSite
from muster.lab.node import Node

WIRE = Path(__file__).with_name("slow_wire.py")


class Cables:
    """The cables between the hosts of a site and its switch."""

    def __init__(self, site: NamespaceSite) -> None:
        self._site = site
        self._wires: dict[str, Node] = {}
        self._kernel_can_delay: bool | None = None

    def change(self, name: str, old: Link, new: Link) -> None:
        """Change the cable of a running host from one state to another."""
        slow_wire = new.delay_ms != old.delay_ms and not self._netem()
        if slow_wire:
            self._lay_wire(name, new.delay_ms)
        if new.rate != old.rate or (new.delay_ms != old.delay_ms and not slow_wire):
            self._shape(name, new)
        if new.blocks != old.blocks or new.loss_percent != old.loss_percent or (slow_wire and new.loss_percent):
            self._filter(name, new)
        if new.cut != old.cut:
            self._site.in_switch(
                ["ip", "-b", "-"], text=link_rules.carrier(name, new), what=f"could not change the cable of {name}"
            )
        if old.cut and not new.cut:
            self._forget_neighbors()

    def drop(self, name: str) -> None:
        """Remove the cable of a dead host, including its faults."""
        self._end_wire(name)
        self._site.remove_cable(name)

    def close(self) -> None:
        """Stop the slow wires; everything else ends with the switch."""
        for name in list(self._wires):
            self._end_wire(name)

    def _forget_neighbors(self) -> None:
        """End searches for neighbors that began while a cable was cut: what connects now would fail with them."""
        for name in filter(self._site.running, self._site.hosts):
            argv = ["ip", "neigh", "flush", "dev", "eth0"]
            self._site.in_network_of(name, argv, what=f"could not reset the neighbors of {name}")

    def _shape(self, name: str, link: Link) -> None:
        netem = self._netem()
        what = f"could not set the speed of {name}'s cable"
        shape_host = link_rules.shaping("eth0", link, netem=netem)
        self._site.in_network_of(name, ["tc", "-b", "-"], text=shape_host, what=what)
        shape_switch = link_rules.shaping(link_rules.port_of(name), link, netem=netem)
        self._site.in_switch(["tc", "-b", "-"], text=shape_switch, what=what)

    def _filter(self, name: str, link: Link) -> None:
        what = f"could not set the packet filter of {name}"
        self._site.in_network_of(name, ["nft", "-f", "-"], text=link_rules.host_rules(link), what=what)
        entry = link_rules.far_end(name) if name in self._wires else link_rules.port_of(name)
        self._site.in_switch(["nft", "-f", "-"], text=link_rules.switch_rules(name, entry, link), what=what)

    def _netem(self) -> bool:
        if self._kernel_can_delay is None:
            probe = "".join(link_rules.shaping("lo", link, netem=True) for link in (Link(delay_ms=1), Link()))
            try:
                self._site.in_switch(["tc", "-b", "-"], text=probe, what="no netem")
                self._kernel_can_delay = True
            except LabError:
                self._kernel_can_delay = False
        return self._kernel_can_delay

    def _lay_wire(self, name: str, delay_ms: float) -> None:
        """Insert the user-space wire between the host's port and the bridge, or remove it."""
        had_wire = name in self._wires
        self._end_wire(name)
        what = f"could not slow down the cable of {name}"
        port, near, far = link_rules.port_of(name), link_rules.near_end(name), link_rules.far_end(name)
        if had_wire:
            self._site.in_switch(["ip", "-b", "-"], text=f"link del {near}\nlink set {port} master br0\n", what=what)
        # With offloading, the wire would get frames of 64 kB without checksums.
        offloads = _offloads(on=not delay_ms)
        self._site.in_network_of(name, ["ethtool", "-K", "eth0", *offloads], what=what)
        if not delay_ms:
            return
        batch = (
            f"link add {near} type veth peer name {far}\n"
            f"link set {near} addrgenmode none up\n"
            f"link set {far} addrgenmode none master br0 up\n"
            f"link set {port} nomaster\n"
        )
        self._site.in_switch(["ip", "-b", "-"], text=batch, what=what)
        for end in (near, far):
            self._site.in_switch(["ethtool", "-K", end, *_offloads(on=False)], what=what)
        argv = [sys.executable, "-I", "-S", str(WIRE), port, near, str(delay_ms / 1000)]
        wire = Node(f"the slow wire of {name}", self._site.switch_argv(argv), env=None, errors=None)
        self._wires[name] = wire
        wire.expect("ready", time.monotonic() + 20)

    def _end_wire(self, name: str) -> None:
        if wire := self._wires.pop(name, None):
            wire.end()


def _offloads(*, on: bool) -> list[str]:
    state = "on" if on else "off"
    return [word for feature in ("tx", "tso", "gso", "gro") for word in (feature, state)]
