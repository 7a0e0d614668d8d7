"""All that is known when the checks judge: what each host answered, and what the job wants. Pure data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from muster.errors import HostError
from muster.run.addresses import Offer

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One host whose agent came up."""

    name: str
    up: Mapping[str, Any]
    """What the agent said first: python, torch, cpus, gpus, visible, omp, interfaces."""
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By the name of the check that asked."""
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
    clock: float = 0.0
    """Its clock minus ours, in seconds."""
    clock_error: float = float("inf")
    """How far that may be off: half the shortest round trip."""
    noise: str = ""
    """What came over the connection before the agent's greeting."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A host that no agent came up on."""

    name: str
    why: HostError
    said: str = ""
    """The last words of ssh."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the job asks for."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that ranks get from this command: those of --env, and those that travel."""
    named: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of --env only."""
    cwd: str = ""
    script: str = ""
    digest: Sequence[int] | None = None
    """Of the script here."""
    paths: tuple[str, ...] = ()
    """Files and folders that the job reads on every host."""
    master_addr: str | None = None
    master_port: int | None = None
    interface: str | None = None
    python: str | None = None
    image: str | None = None
    sync: bool = False
    argv: tuple[str, ...] = ()
    """The command line that was typed, beginning with `muster`."""

    def without(self, option: str) -> str:
        """The command line without an option that takes a value."""
        return self.with_value(option, None)

    def with_value(self, option: str, value: str | None) -> str:
        """The command line with another value for an option, or without it."""
        import shlex

        kept: list[str] = []
        words = iter(self.argv)
        for word in words:
            if word == option:
                next(words, None)
            elif not word.startswith(f"{option}="):
                kept.append(word)
        new = [] if value is None else [option, value]
        return shlex.join([*kept[:2], *new, *kept[2:]])


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Who reached whom."""

    offers: tuple[Offer, ...] = ()
    """Each host as the others looked for it."""
    tried: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict[str, Sequence[Mapping[str, Any]]])
    """By dialling host: what it tried (host, address, port) and how it went (problem; empty when reached)."""
    master: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict[str, Sequence[Mapping[str, Any]]])
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
    """None where nobody dialled: one host, or a job whose hosts meet in another way."""

    def answers(self, check: str) -> dict[str, Any]:
        """What each host answered to a check's probe, where it did."""
        return {m.name: m.answers[check] for m in self.machines if check in m.answers}

    def machine(self, name: str) -> Machine:
        """One host by its name."""
        return next(machine for machine in self.machines if machine.name == name)

    @property
    def world_size(self) -> int:
        """How many ranks the job will have."""
        return sum(machine.ranks for machine in self.machines)

    def sudo(self, name: str) -> str:
        """What must stand before a command there that changes the system: nothing for root."""
        return "" if self.machine(name).answers.get("system", {}).get("uid") == 0 else "sudo "


def odd_ones(values: Mapping[str, Value]) -> tuple[Value, dict[str, Value]] | None:
    """The value most hosts have, and the hosts that differ; None if all agree. In a tie the first host is right."""
    often = Counter(values.values()).most_common()
    if len(often) < 2:
        return None
    common = often[0][0]  # Counter keeps the order of first sight among equals
    return common, {name: value for name, value in values.items() if value != common}


def each(values: Mapping[str, Any], say: Callable[[Any], str] = str) -> str:
    """`2.13 on h1, h3; 2.12 on h2`."""
    from muster.run.words import names

    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(say(value), []).append(name)
    return "; ".join(f"{value} on {names(hosts)}" for value, hosts in groups.items())
