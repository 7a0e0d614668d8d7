"""What can happen to the hosts of a lab, and what has happened to each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.errors import LabError
from muster.lab.cables import Cables
from muster.lab.cgroups import Cgroups
from muster.lab.link_rules import Block, Direction, Link, Refusal
from muster.lab.namespaces import NamespaceSite, call

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


class Faults:
    """Breaks and mends the hosts of a site."""

    def __init__(self, site: NamespaceSite, disk: str) -> None:
        self._site = site
        self._disk = disk
        self._cables = Cables(site)
        self._cgroups = Cgroups(site.folder.name, site.folder / "cgroups", site.pids)
        self._conditions: dict[str, Condition] = {}

    def condition(self, host: str) -> Condition:
        """What a host suffers."""
        return self._conditions.setdefault(host, Condition())

    def change_link(self, host: str, new: Link) -> None:
        """Give the cable of a host these faults, and no others."""
        condition = self.condition(host)
        self._cables.change(host, condition.link, new)
        condition.link = new

    def block_port(self, host: str, port: int, how: Refusal, direction: Direction) -> None:
        """Close a TCP port for connections into the host, or for those from the host to others."""
        link = self.condition(host).link
        others = tuple(b for b in link.blocks if (b.port, b.direction) != (port, direction))
        block = Block(port=port, how=how, direction=direction)
        self.change_link(host, replace(link, blocks=(*others, block)))

    def limit_cpu(self, host: str, cores: float | None) -> None:
        """Let all processes of a host together have this much CPU time; None lifts the limit."""
        self.condition(host).groups[self._cgroups.limit_cpu(host, cores)] = None
        self.condition(host).cores = cores

    def limit_memory(self, host: str, size: str | None) -> None:
        """Let all processes of a host together hold this much memory; None lifts the limit."""
        self.condition(host).groups[self._cgroups.limit_memory(host, size)] = None
        self.condition(host).memory = size

    def fill_disk(self, host: str) -> None:
        """Shrink the host's file systems to what is in them: they are full, and no memory is used."""
        self._inside(host, FILL_DISK, what=f"the disk of {host} could not be filled")
        self.condition(host).disk_full = True

    def freeze(self, host: str) -> None:
        """Stop every process of the host."""
        self._cgroups.freeze(host)
        self.condition(host).frozen = True

    def thaw(self, host: str) -> None:
        """Let them go on."""
        self._cgroups.thaw(host)
        self.condition(host).frozen = False

    def heal(self, host: str) -> None:
        """Undo everything but frost."""
        condition = self.condition(host)
        self.change_link(host, Link())
        if condition.cores is not None:
            self.limit_cpu(host, None)
        if condition.memory is not None:
            self.limit_memory(host, None)
        if condition.disk_full:
            self._inside(host, FREE_DISK, self._disk, what=f"the disk of {host} could not be freed")
            condition.disk_full = False

    def kill(self, host: str, *, silently: bool) -> None:
        """End a host, if it still runs; `silently` cuts the cable first, so that no peer hears of it."""
        condition = self.condition(host)
        if silently and self._site.running(host):
            self.change_link(host, replace(condition.link, cut=True))
        if condition.frozen:
            self.thaw(host)  # a version 1 freezer holds back even SIGKILL
        self._site.kill(host)
        self._cables.drop(host)
        self._cgroups.release(host)
        self._conditions[host] = Condition()

    def close(self) -> None:
        """Thaw what is frozen, so that it can end, and take the slow wires away."""
        for host, condition in self._conditions.items():
            if condition.frozen:
                self._cgroups.thaw(host)
        self._cables.close()

    def _inside(self, host: str, script: str, *arguments: str, what: str) -> None:
        call([*self._site.enter_argv(host, as_root=True), "sh", "-c", script, "sh", *arguments], what=what)


def check_rate(rate: str) -> str:
    """Return a rate that tc will take, or raise a LabError that shows how to write one."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[kmg]?bit", rate):
        raise LabError(f"`{rate}` is not a network speed", hint="write it like 40mbit, 500kbit or 1gbit")
    return rate
