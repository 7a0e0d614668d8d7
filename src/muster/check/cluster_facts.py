"""The input of the checks, as pure data: what each host answered, and what the job asks for."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from muster.agent.probes import nvidia, operating_system
from muster.check.finding import Fix
from muster.controller.addresses import Offer
from muster.engines.kubernetes.pod_facts import PodFacts
from muster.errors import HostError
from muster.shared.host_state import Facts
from muster.shared.replies import DialResult
from muster.shared.requests import Question

VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman")
"""Name prefixes of network interfaces that lead to containers, not to other hosts."""

Value = TypeVar("Value", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A host whose agent started."""

    name: str
    up: Facts
    """The agent's first message."""
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Answers by probe name; use `answer` to get one with its type."""
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Duration of each probe."""
    hung: Mapping[str, float] = field(default_factory=dict[str, float])
    """Probes that were killed, with the number of seconds after which they were."""
    broken: Mapping[str, str] = field(default_factory=dict[str, str])
    """Probes that failed, with the error."""
    ranks: int = 1
    """Number of ranks the job will start here."""
    inherits: bool = False
    """Whether it inherits the environment of this command."""
    login: tuple[str, ...] | None = None
    """What to type before a command to run it there, such as `ssh h2`; empty for this machine, None if impossible."""
    tasks: int | None = None
    """Number of tasks the scheduler allocated here."""
    clock: float = 0.0
    """Its clock minus the local one, in seconds."""
    clock_error: float = float("inf")
    """Uncertainty of `clock` in seconds: half the shortest round trip."""
    noise: str = ""
    """What the connection printed before the agent's first message."""

    def answer(self, probe: Callable[[Question], Answer]) -> Answer | None:
        """The host's answer to a probe, or None if there was none."""
        return self.answers.get(probe.__name__)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A host on which no agent started."""

    name: str
    why: HostError
    spec: str = ""
    """The host in the syntax of `-H`."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the job needs."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables that ranks get from this command: those of --env, and those forwarded by default."""
    named: Mapping[str, str] = field(default_factory=dict[str, str])
    """Only those of --env."""
    cwd: str = ""
    script: str = ""
    code: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    """Files below the working directory that must be the same on all hosts, each with its size and CRC."""
    torch: bool = True
    """Whether the ranks will import torch."""
    paths: tuple[str, ...] = ()
    """Files and directories that the job reads on every host."""
    data: tuple[str, ...] = ()
    """The subset of `paths` given with --data."""
    expected: tuple[str, ...] = ()
    """The subset of `paths` that is reported even if no host has it."""
    here: tuple[str, ...] = ()
    """The subset of `paths` that exists on this machine."""
    master_addr: str | None = None
    master_port: int | None = None
    interface: str | None = None
    python: str | None = None
    image: str | None = None
    pods: bool = False
    """Whether the hosts are pods of Kubernetes."""
    sync: bool = False
    argv: tuple[str, ...] = ()
    """The command line as typed, starting with `muster`."""
    known_bad: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """What earlier jobs learned about hosts, by name: the host as typed, and why it counts as bad."""

    def typed(self, option: str, value: str | None = None, *, dropped: str = "") -> str:
        """The command line with an option replaced or removed; with `dropped`, only the one that sets that variable."""
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
        """The command line with additional options for the container runtime."""
        words = [*self.argv, ""]
        given = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--container-args"]
        given += [word.partition("=")[2] for word in words if word.startswith("--container-args=")]
        return self.typed("--container-args", " ".join([*given, more]))


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Which hosts reached which."""

    offers: tuple[Offer, ...] = ()
    """The addresses and port on which the others tried to reach each host."""
    tried: Mapping[str, Sequence[DialResult]] = field(default_factory=dict[str, Sequence[DialResult]])
    """Connection attempts and their results, by dialing host."""
    master: Mapping[str, Sequence[DialResult]] = field(default_factory=dict[str, Sequence[DialResult]])
    """The same for the master port, if the user chose one."""
    port_problem: str = ""
    """Why the first host could not open the master port."""
    port_owner: str | None = None
    """The process that uses the master port."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The hosts, in rank order."""

    machines: tuple[Machine, ...]
    refusals: tuple[Refusal, ...] = ()
    wanted: Wanted = Wanted()
    reach: Reach | None = None
    """None if no host dialed another: there is one host, or a connection was lost."""
    pods: PodFacts | None = None
    """What the API server says, if the hosts are pods."""

    def answers(self, probe: Callable[[Question], Answer]) -> dict[str, Answer]:
        """The answers to a probe, by host, without hosts that did not answer."""
        name = probe.__name__
        return {machine.name: machine.answers[name] for machine in self.machines if name in machine.answers}

    def gpus(self, host: str) -> list[nvidia.Gpu]:
        """The GPUs of a host as reported by nvidia-smi."""
        answer = self.machine(host).answer(nvidia.gpus)
        return answer["gpus"] if answer else []

    def machine(self, name: str) -> Machine:
        """Look up a host by name."""
        return next(machine for machine in self.machines if machine.name == name)

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""
        return sum(machine.ranks for machine in self.machines)

    def sudo(self, name: str) -> str:
        """The prefix for commands that change the system: `sudo `, or empty for root outside a container."""
        system = self.machine(name).answer(operating_system.system)
        return "" if self.wanted.image is None and system and system["uid"] == 0 else "sudo "

    def address(self, name: str) -> str | None:
        """The address that most other hosts reached; if untested, the first that is not on a virtual network."""
        nics = [nic for nic in self.machine(name).up["interfaces"] if not nic["loopback"]]
        nics.sort(key=lambda nic: nic["name"].startswith(VIRTUAL))
        candidates: list[str] = [address for nic in nics for address in nic["addresses"]]
        reached: list[str] = []
        if self.reach is not None:
            results = [result for tried in self.reach.tried.values() for result in tried if result["host"] == name]
            reached = [result["address"] for result in results if not result["problem"]]
        return max(candidates, key=reached.count, default=None)

    def line(self, fix: Fix) -> str:
        """The command to type for a fix, with its ssh prefix; it starts with `on HOST:` if the host has no login."""
        if not fix.on or not fix.command:
            return fix.command
        login = self.machine(fix.on).login
        if login is None:
            return f"on {fix.on}: {fix.command}"
        return shlex.join([*login, fix.command]) if login else fix.command


def odd_ones(values: Mapping[str, Value]) -> tuple[Value | None, dict[str, Value]]:
    """The most common value, and the hosts that differ from it. In a tie the first host's value wins."""
    often = Counter(values.values()).most_common(1)  # on a tie, the value that was counted first
    common = often[0][0] if often else None
    return common, {name: value for name, value in values.items() if value != common}
