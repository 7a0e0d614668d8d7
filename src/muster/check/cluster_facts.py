"""All that is known when the checks judge: what each host answered, and what the job wants. Pure data."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from muster.agent.probes import nvidia, operating_system
from muster.check.finding import Fix
from muster.controller.addresses import Offer
from muster.errors import HostError
from muster.shared.events import Facts
from muster.shared.replies import DialResult
from muster.shared.requests import Question

VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman")
"""How names of interfaces begin that lead to containers, not to other hosts."""

Value = TypeVar("Value", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One host whose agent came up."""

    name: str
    up: Facts
    """What the agent said first."""
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By the name of the probe; `answer` returns one with its type."""
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """How long each probe took."""
    hung: Mapping[str, float] = field(default_factory=dict[str, float])
    """The probes that were killed, and after how long."""
    broken: Mapping[str, str] = field(default_factory=dict[str, str])
    """The probes that failed, and why."""
    ranks: int = 1
    """How many the job will start here."""
    inherits: bool = False
    """Whether it has the environment of this command."""
    login: tuple[str, ...] | None = None
    """What a person types before a command for it: `ssh h2`; nothing for this machine, None if there is no way."""
    tasks: int | None = None
    """How many the scheduler counts on here."""
    clock: float = 0.0
    """Its clock minus ours, in seconds."""
    clock_error: float = float("inf")
    """How far that may be off: half the shortest round trip."""
    noise: str = ""
    """What came over the connection before the agent's greeting."""

    def answer(self, probe: Callable[[Question], Answer]) -> Answer | None:
        """What the host answered to a probe; None where it gave no answer."""
        return self.answers.get(probe.__name__)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A host that no agent came up on."""

    name: str
    why: HostError
    spec: str = ""
    """The host as `-H` reads it."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the job asks for."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that ranks get from this command: those of --env, and those that travel."""
    named: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of --env only."""
    cwd: str = ""
    script: str = ""
    code: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    """Files that the hosts should have as they are here, below the folder, each with its size and CRC."""
    torch: bool = True
    """Whether the ranks will import it."""
    paths: tuple[str, ...] = ()
    """Files and folders that the job reads on every host."""
    data: tuple[str, ...] = ()
    """Those of them that the user named with --data."""
    expected: tuple[str, ...] = ()
    """Those of them that are reported even if no host has them."""
    here: tuple[str, ...] = ()
    """Those of them that this machine has."""
    master_addr: str | None = None
    master_port: int | None = None
    interface: str | None = None
    python: str | None = None
    image: str | None = None
    sync: bool = False
    argv: tuple[str, ...] = ()
    """The command line that was typed, beginning with `muster`."""

    def typed(self, option: str, value: str | None = None, *, dropped: str = "") -> str:
        """The command line with another value for an option, or without it; of several, only that of `dropped`."""
        kept: list[str] = []
        words = iter(self.argv)
        for word in words:
            name, equals, given = word.partition("=")
            if name != option:
                kept.append(word)
                continue
            given = given if equals else next(words, "")
            if dropped and given.partition("=")[0] != dropped:
                kept += [option, given]
        new = [] if value is None else [option, value]
        return shlex.join([*kept[:2], *new, *kept[2:]])

    def with_container_args(self, more: str) -> str:
        """The command line with more options for the container program."""
        words = [*self.argv, ""]
        given = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--container-args"]
        given += [word.partition("=")[2] for word in words if word.startswith("--container-args=")]
        return self.typed("--container-args", " ".join([*given, more]))


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Who reached whom."""

    offers: tuple[Offer, ...] = ()
    """Each host as the others looked for it."""
    tried: Mapping[str, Sequence[DialResult]] = field(default_factory=dict[str, Sequence[DialResult]])
    """By dialing host: what it tried, and how it went."""
    master: Mapping[str, Sequence[DialResult]] = field(default_factory=dict[str, Sequence[DialResult]])
    """The same for the master port, if one is wanted."""
    port_problem: str = ""
    """Why the master port cannot be opened on the first host."""
    port_owner: str | None = None
    """Who has it."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The hosts, in the order of the ranks."""

    machines: tuple[Machine, ...]
    refusals: tuple[Refusal, ...] = ()
    wanted: Wanted = Wanted()
    reach: Reach | None = None
    """None where nobody dialed: one host, or a job whose hosts meet in another way."""

    def answers(self, probe: Callable[[Question], Answer]) -> dict[str, Answer]:
        """What each host answered to a probe, where it did."""
        name = probe.__name__
        return {machine.name: machine.answers[name] for machine in self.machines if name in machine.answers}

    def gpus(self, host: str) -> list[nvidia.Gpu]:
        """What nvidia-smi said of each GPU of a host."""
        answer = self.machine(host).answer(nvidia.gpus)
        return answer["gpus"] if answer else []

    def machine(self, name: str) -> Machine:
        """One host by its name."""
        return next(machine for machine in self.machines if machine.name == name)

    @property
    def world_size(self) -> int:
        """How many ranks the job will have."""
        return sum(machine.ranks for machine in self.machines)

    def sudo(self, name: str) -> str:
        """What must stand before a command there that changes the system: nothing for root, outside a container."""
        system = self.machine(name).answer(operating_system.system)
        return "" if self.wanted.image is None and system and system["uid"] == 0 else "sudo "

    def address(self, name: str) -> str | None:
        """Where most others reached a host; without a test, its first address that is on no virtual network."""
        nics = [nic for nic in self.machine(name).up["interfaces"] if not nic["loopback"]]
        nics.sort(key=lambda nic: nic["name"].startswith(VIRTUAL))
        candidates: list[str] = [address for nic in nics for address in nic["addresses"]]
        reached: list[str] = []
        if self.reach is not None:
            results = [result for tried in self.reach.tried.values() for result in tried if result["host"] == name]
            reached = [result["address"] for result in results if not result["problem"]]
        return max(candidates, key=reached.count, default=None)

    def line(self, fix: Fix) -> str:
        """What a person types to mend something; for a host we have no login to, it says where."""
        if not fix.on or not fix.command:
            return fix.command
        login = self.machine(fix.on).login
        if login is None:
            return f"on {fix.on}: {fix.command}"
        return shlex.join([*login, fix.command]) if login else fix.command


def odd_ones(values: Mapping[str, Value]) -> tuple[Value | None, dict[str, Value]]:
    """The value most hosts have, and the hosts that differ. In a tie the first host is right."""
    often = Counter(values.values()).most_common(1)  # keeps the order of first sight among equals
    common = often[0][0] if often else None
    return common, {name: value for name, value in values.items() if value != common}
