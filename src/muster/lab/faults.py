"""What can happen to the hosts of a lab, and what has happened to each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from muster.errors import LabError
from muster.lab.cables import Cables
from muster.lab.cgroups import Cgroups
from muster.lab.link_rules import Block, Direction, Link, Refusal
from muster.lab.loopback import LoopbackSite
from muster.lab.namespaces import NamespaceSite, call

State = Literal["up", "off", "frozen"]

BETTER_LAB = "run the lab as root, or where user namespaces are allowed"

FILL_DISK = """\
for disk in /run/muster-lab/disk /tmp; do
  # One page at least: a tmpfs of size 0 would have no limit.
  head -c 4096 /dev/zero > $disk/.filled-by-muster-lab
  for attempt in 1 2 3 4 5; do
    # With the source named, mount does not repeat the old options, some of which a user namespace refuses.
    size=$(($(df --block-size=1 --output=used $disk | tail -1)))
    mount -t tmpfs -o remount,size=$size muster-lab $disk && break
  done || exit 1
done
"""

FREE_DISK = """\
for disk in /run/muster-lab/disk /tmp; do
  mount -t tmpfs -o remount,size=$1 muster-lab $disk && rm -f $disk/.filled-by-muster-lab || exit 1
done
"""


@dataclass
class Condition:
    """What a host suffers at the moment."""

    frozen: bool = False
    cores: float | None = None
    memory: str | None = None
    groups: dict[Path, None] = field(default_factory=dict[Path, None])
    """The control groups that its processes must be in, in order."""
    disk_full: bool = False
    link: Link = field(default_factory=Link)

    def describe(self) -> tuple[str, ...]:
        """Each fault in a few words."""
        cpu = () if self.cores is None else (f"cpu {self.cores:g}",)
        memory = () if self.memory is None else (f"memory {self.memory}",)
        return (*self.link.describe(), *cpu, *memory, *(("disk full",) if self.disk_full else ()))


class _Tools(NamedTuple):
    """What faults are made with, where hosts live in namespaces."""

    site: NamespaceSite
    cables: Cables
    cgroups: Cgroups


class Faults:
    """The part of `Lab` that breaks its hosts and heals them."""

    def __init__(self, names: tuple[str, ...], disk: str) -> None:
        self.names = names
        """The hosts in order."""
        self._disk = disk
        self._site: NamespaceSite | LoopbackSite | None = None
        self._tools: _Tools | None = None
        self._conditions: dict[str, Condition] = {}

    def _attach(self, site: NamespaceSite | LoopbackSite) -> None:
        """The hosts are those of this site from now on."""
        self._site = site
        if isinstance(site, NamespaceSite):
            cgroups = Cgroups(site.folder.name, site.folder / "cgroups", site.pids)
            self._tools = _Tools(site, Cables(site), cgroups)

    def stop(self) -> None:
        """Take the lab down; nothing of it is left when this returns."""
        if self._tools:
            for host, condition in self._conditions.items():
                if condition.frozen:  # or it could not end
                    self._tools.cgroups.thaw(host)
            self._tools.cables.close()
        if self._site:
            self._site.close()
        self._site, self._tools = None, None
        self._conditions.clear()

    def cut(self, host: str) -> None:
        """Cut the cable of a host: it has no carrier, and its peers hear nothing more."""
        self._relink(host, "cut", cut=True)

    def loss(self, host: str, percent: float) -> None:
        """Lose this share of the packets to and from a host."""
        if not 0 <= percent <= 100:
            raise LabError(f"{percent:g} percent of the packets cannot be lost", hint="give a number from 0 to 100")
        self._relink(host, "loss", loss_percent=percent)

    def delay(self, host: str, milliseconds: float) -> None:
        """Deliver each packet to and from a host this much later; a round trip takes twice as much longer."""
        if not 0 <= milliseconds <= 60_000:
            raise LabError(f"a delay of {milliseconds:g} ms cannot be made", hint="give a number from 0 to 60000")
        self._relink(host, "delay", delay_ms=milliseconds)

    def slow(self, host: str, *, cpu: float | None = None, rate: str | None = None) -> None:
        """Slow a host down: `cpu` is how many cores all its processes share, `rate` its network speed."""
        if cpu is None and rate is None:
            raise LabError(f"say in what way {host} is slow", hint=f"muster lab slow {host} --cpu 0.1")
        if cpu is not None and cpu < 0.01:
            raise LabError(f"{cpu:g} cores are too few", hint="0.01 is the least: a hundredth of a core")
        if rate is not None:
            self._relink(host, "slow", rate=_checked_rate(rate))
        if cpu is not None:
            self._limit_cpu(host, cpu, self._breakable(host, "slow"))

    def limit_memory(self, host: str, size: str) -> None:
        """Let all processes of a host together hold this much memory: 256m, 2g. The kernel kills who needs more."""
        self._limit_memory(host, checked_size(size), self._breakable(host, "limit-memory"))

    def block_port(self, host: str, port: int, *, how: Refusal = "reject", direction: Direction = "in") -> None:
        """Close a TCP port of a host ("in"), or that port of all others for it ("out")."""
        if not 1 <= port <= 65535:
            raise LabError(f"{port} is not a port", hint="ports go from 1 to 65535")
        others = (b for b in self._condition(host).link.blocks if (b.port, b.direction) != (port, direction))
        block = Block(port=port, how=how, direction=direction)
        self._relink(host, "block-port", blocks=(*others, block))

    def fill_disk(self, host: str) -> None:
        """Fill / and /tmp of a host: it can write nothing more there, while its peers can."""
        # Its file systems shrink to what is in them, so that no memory is used.
        tools = self._breakable(host, "fill-disk")
        _inside(tools.site, host, FILL_DISK, what=f"the disk of {host} could not be filled")
        self._condition(host).disk_full = True

    def heal(self, host: str) -> None:
        """Undo cut, loss, delay, slow, limit_memory, block_port and fill_disk."""
        tools, condition = self._breakable(host, "heal"), self._condition(host)
        self._change_link(host, Link(), tools)
        if condition.cores is not None:
            self._limit_cpu(host, None, tools)
        if condition.memory is not None:
            self._limit_memory(host, None, tools)
        if condition.disk_full:
            _inside(tools.site, host, FREE_DISK, self._disk, what=f"the disk of {host} could not be freed")
            condition.disk_full = False

    def freeze(self, host: str) -> None:
        """Stop every process of a host; its network is up, but nobody answers."""
        self._breakable(host, "freeze").cgroups.freeze(host)
        self._condition(host).frozen = True

    def thaw(self, host: str) -> None:
        """Let the processes of a frozen host go on."""
        self._running(host)
        if self._tools is None or not self._condition(host).frozen:
            raise LabError(f"{host} is not frozen")
        self._tools.cgroups.thaw(host)
        self._condition(host).frozen = False

    def crash(self, host: str) -> None:
        """Kill all processes of a host at once; the kernel closes their connections: peers get FIN or RST."""
        self._running(host)
        self._kill(host, silently=False)

    def power_off(self, host: str) -> None:
        """Pull the plug of a host: it is gone, and its peers hear nothing."""
        self._running(host)
        if self._tools is None:
            raise _cannot("power-off")
        self._kill(host, silently=True)

    def _kill(self, host: str, *, silently: bool) -> None:
        """End a host, if it still runs; `silently` cuts the cable first, so that no peer hears of it."""
        site, tools, condition = self._up(), self._tools, self._condition(host)
        if tools and silently and site.running(host):
            self._change_link(host, replace(condition.link, cut=True), tools)
        if tools and condition.frozen:
            tools.cgroups.thaw(host)  # a version 1 freezer holds back even SIGKILL
        site.kill(host)
        if tools:
            tools.cables.drop(host)
            tools.cgroups.release(host)
        self._conditions[host] = Condition()

    def _relink(self, host: str, fault: str, **changes: Any) -> None:
        tools = self._breakable(host, fault)
        self._change_link(host, replace(self._condition(host).link, **changes), tools)

    def _change_link(self, host: str, new: Link, tools: _Tools) -> None:
        """Give the cable of a host these faults, and no others."""
        condition = self._condition(host)
        tools.cables.change(host, condition.link, new)
        condition.link = new

    def _limit_cpu(self, host: str, cores: float | None, tools: _Tools) -> None:
        self._condition(host).groups[tools.cgroups.limit_cpu(host, cores)] = None
        self._condition(host).cores = cores

    def _limit_memory(self, host: str, size: str | None, tools: _Tools) -> None:
        self._condition(host).groups[tools.cgroups.limit_memory(host, size)] = None
        self._condition(host).memory = size

    def _condition(self, host: str) -> Condition:
        return self._conditions.setdefault(host, Condition())

    def _state(self, host: str) -> State:
        if not self._up().running(host):
            return "off"
        return "frozen" if self._condition(host).frozen else "up"

    def _up(self) -> NamespaceSite | LoopbackSite:
        if self._site is None:
            raise LabError("the lab is not up")
        return self._site

    def _known(self, host: str) -> str:
        if host not in self.names:
            many = f"the hosts are h1 to {self.names[-1]}" if len(self.names) > 1 else "the only host is h1"
            raise LabError(f"there is no host `{host}` in this lab", hint=many)
        return host

    def _running(self, host: str) -> None:
        if self._state(self._known(host)) == "off":
            raise LabError(f"{host} is off", hint=f"muster lab reboot {host}")

    def _awake(self, host: str) -> None:
        self._running(host)
        if self._condition(host).frozen:
            raise LabError(f"{host} is frozen", hint=f"muster lab thaw {host}")

    def _breakable(self, host: str, fault: str) -> _Tools:
        self._awake(host)
        if self._tools is None:
            raise _cannot(fault)
        return self._tools


def _cannot(fault: str) -> LabError:
    return LabError(f"`{fault}` cannot be done in this lab: its hosts are mere loopback addresses", hint=BETTER_LAB)


def _inside(site: NamespaceSite, host: str, script: str, *arguments: str, what: str) -> None:
    call([*site.enter_argv(host, as_root=True), "sh", "-c", script, "sh", *arguments], what=what)


def checked_size(text: str) -> str:
    """Return the size of a disk or memory, or raise a LabError that shows how to write one."""
    if not re.fullmatch(r"[1-9][0-9]*[kmg]?", text):
        raise LabError(f"`{text}` is not the size of a disk", hint="write it like 256m or 1g")
    return text


def _checked_rate(rate: str) -> str:
    """Return a rate that tc will take, or raise a LabError that shows how to write one."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[kmg]?bit", rate):
        raise LabError(f"`{rate}` is not a network speed", hint="write it like 40mbit, 500kbit or 1gbit")
    return rate
