"""Faults of the hosts of a lab: injecting them, and the current faults of each host."""

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

BETTER_LAB = "start the lab as root, or where user namespaces are allowed"

FILL_DISK = """\
for disk in /run/muster-lab/disk /tmp; do
  # At least one page: a tmpfs of size 0 would have no limit.
  head -c 4096 /dev/zero > $disk/.filled-by-muster-lab
  for attempt in 1 2 3 4 5; do
    # With an explicit source, mount does not repeat the old options, some of which a user namespace refuses.
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
    """The current faults of a host."""

    frozen: bool = False
    cores: float | None = None
    memory: str | None = None
    groups: dict[Path, None] = field(default_factory=dict[Path, None])
    """The control groups that its processes must join, in order."""
    disk_full: bool = False
    link: Link = field(default_factory=Link)

    def describe(self) -> tuple[str, ...]:
        """Each fault in a few words."""
        cpu = () if self.cores is None else (f"cpu {self.cores:g}",)
        memory = () if self.memory is None else (f"memory {self.memory}",)
        return (*self.link.describe(), *cpu, *memory, *(("disk full",) if self.disk_full else ()))


class _Tools(NamedTuple):
    """What injects faults into hosts in namespaces."""

    site: NamespaceSite
    cables: Cables
    cgroups: Cgroups


class Faults:
    """The part of `Lab` that injects faults into its hosts and heals them."""

    def __init__(self, names: tuple[str, ...], disk: str) -> None:
        self.names = names
        """Names of the hosts, in order."""
        self._disk = disk
        self._site: NamespaceSite | LoopbackSite | None = None
        self._tools: _Tools | None = None
        self._conditions: dict[str, Condition] = {}

    def _attach(self, site: NamespaceSite | LoopbackSite) -> None:
        """Use the hosts of this site from now on."""
        self._site = site
        if isinstance(site, NamespaceSite):
            cgroups = Cgroups(site.folder.name, site.folder / "cgroups", site.pids)
            self._tools = _Tools(site, Cables(site), cgroups)

    def stop(self) -> None:
        """Stop the lab; nothing of it is left when this returns."""
        if self._tools:
            for host, condition in self._conditions.items():
                if condition.frozen:  # a frozen host could not end
                    self._tools.cgroups.thaw(host)
            self._tools.cables.close()
        if self._site:
            self._site.close()
        self._site, self._tools = None, None
        self._conditions.clear()

    def cut(self, host: str) -> None:
        """Cut the cable of a host: it loses its carrier, and its peers receive nothing."""
        self._relink(host, "cut", cut=True)

    def loss(self, host: str, percent: float) -> None:
        """Drop this percentage of the packets to and from a host."""
        if not 0 <= percent <= 100:
            raise LabError(f"packet loss must be from 0 to 100 percent, got {percent:g}")
        self._relink(host, "loss", loss_percent=percent)

    def delay(self, host: str, milliseconds: float) -> None:
        """Delay each packet to and from a host by this much; a round trip gets twice the delay."""
        if not 0 <= milliseconds <= 60_000:
            raise LabError(f"delay must be from 0 to 60000 ms, got {milliseconds:g}")
        self._relink(host, "delay", delay_ms=milliseconds)

    def slow(self, host: str, *, cpu: float | None = None, rate: str | None = None) -> None:
        """Slow a host down: `cpu` is the number of cores all its processes share, `rate` its network speed."""
        if cpu is None and rate is None:
            raise LabError("slow needs --cpu or --rate", hint=f"muster lab slow {host} --cpu 0.1")
        if cpu is not None and cpu < 0.01:
            raise LabError(f"number of cores must be at least 0.01, got {cpu:g}")
        if rate is not None:
            self._relink(host, "slow", rate=_checked_rate(rate))
        if cpu is not None:
            self._limit_cpu(host, cpu, self._breakable(host, "slow"))

    def limit_memory(self, host: str, size: str) -> None:
        """Limit the memory of all processes of a host together: 256m, 2g. The OOM killer ends those that need more."""
        self._limit_memory(host, checked_size(size), self._breakable(host, "limit-memory"))

    def block_port(self, host: str, port: int, *, how: Refusal = "reject", direction: Direction = "in") -> None:
        """Block a TCP port of a host ("in"), or its connections to that port on other hosts ("out")."""
        if not 1 <= port <= 65535:
            raise LabError(f"port must be from 1 to 65535, got {port}")
        others = (b for b in self._condition(host).link.blocks if (b.port, b.direction) != (port, direction))
        block = Block(port=port, how=how, direction=direction)
        self._relink(host, "block-port", blocks=(*others, block))

    def fill_disk(self, host: str) -> None:
        """Fill / and /tmp of a host, so that it cannot write there while its peers can."""
        # Shrink its file systems to what is in them, which uses no memory.
        tools = self._breakable(host, "fill-disk")
        _inside(tools.site, host, FILL_DISK, what=f"could not fill the disk of {host}")
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
            _inside(tools.site, host, FREE_DISK, self._disk, what=f"could not free the disk of {host}")
            condition.disk_full = False

    def freeze(self, host: str) -> None:
        """Freeze every process of a host; its network stays up, but nothing answers."""
        self._breakable(host, "freeze").cgroups.freeze(host)
        self._condition(host).frozen = True

    def thaw(self, host: str) -> None:
        """Resume the processes of a frozen host."""
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
        """Power off a host: it is gone, and its peers receive nothing."""
        self._running(host)
        if self._tools is None:
            raise _cannot("power-off")
        self._kill(host, silently=True)

    def _kill(self, host: str, *, silently: bool) -> None:
        """End a host if it is running; `silently` cuts its cable first, so that its peers receive nothing."""
        site, tools, condition = self._up(), self._tools, self._condition(host)
        if tools and silently and site.running(host):
            self._change_link(host, replace(condition.link, cut=True), tools)
        if tools and condition.frozen:
            tools.cgroups.thaw(host)  # a version 1 freezer blocks even SIGKILL
        site.kill(host)
        if tools:
            tools.cables.drop(host)
            tools.cgroups.release(host)
        self._conditions[host] = Condition()

    def _relink(self, host: str, fault: str, **changes: Any) -> None:
        tools = self._breakable(host, fault)
        self._change_link(host, replace(self._condition(host).link, **changes), tools)

    def _change_link(self, host: str, new: Link, tools: _Tools) -> None:
        """Set the faults of a host's cable, replacing the previous ones."""
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
            raise LabError("the lab is not running")
        return self._site

    def _known(self, host: str) -> str:
        if host not in self.names:
            many = f"the hosts are h1 to {self.names[-1]}" if len(self.names) > 1 else "the only host is h1"
            raise LabError(f"unknown host `{host}`", hint=many)
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
    return LabError(f"this lab does not support `{fault}`: its hosts are only loopback addresses", hint=BETTER_LAB)


def _inside(site: NamespaceSite, host: str, script: str, *arguments: str, what: str) -> None:
    call([*site.enter_argv(host, as_root=True), "sh", "-c", script, "sh", *arguments], what=what)


def checked_size(text: str) -> str:
    """Return the size of a disk or memory, or raise a LabError that shows the syntax."""
    if not re.fullmatch(r"[1-9][0-9]*[kmg]?", text):
        raise LabError(f"invalid size `{text}`", hint="write it like 256m or 1g")
    return text


def _checked_rate(rate: str) -> str:
    """Return a rate that tc accepts, or raise a LabError that shows the syntax."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[kmg]?bit", rate):
        raise LabError(f"invalid network speed `{rate}`", hint="write it like 40mbit, 500kbit or 1gbit")
    return rate
