"""The interface of an engine: what starts the agents of a job on its hosts (see docs/engines/adding.md)."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from muster.agent import dial_back
from muster.engines.allocation import Allocation
from muster.engines.container.container import Container, container_reason, host_in, without_scripts
from muster.environment import carried
from muster.errors import HostError, MusterError, UsageError
from muster.hosts import Host
from muster.plan import Plan, labels
from muster.shared import bootstrap
from muster.spec import RunSpec

if TYPE_CHECKING:
    from muster.submit.scheduler import Scheduler

PIPED_AGENT = bootstrap.COMMAND
"""What `python -c` runs to become an agent that talks over its stdin and stdout; no shell finds anything to expand."""

DIALING_AGENT = dial_back.COMMAND
"""The same for an agent that dials back: it reads its order from MUSTER_DIAL, or from the file named ORDER_FILE."""

ORDER_FILE = "{order}"
"""Stands in a command line for the file with the order, where the environment does not reach the agent."""


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """One agent to start: for a host, or for one rank of it."""

    host: Host
    name: str
    """What stands before each line of its ranks; no two hosts have the same."""
    key: str = ""
    """What an agent that dials back says of itself, so that it is known which one it is."""
    rank: int | None = None
    """The one rank it serves; None for all of its host."""
    inherits: bool = False
    """Whether the agent has the environment of `muster run` already."""
    here: bool = False
    """Whether this is the machine `muster run` runs on, outside any container."""


@dataclass(frozen=True, kw_only=True)
class StartCommand:
    """One process that is started here and brings up some agents."""

    argv: tuple[str, ...]
    agents: tuple[AgentSpec, ...]
    """Over pipes exactly one."""
    remote: bool = True
    """Whether the agents run elsewhere, so that this process is only the way to them."""
    box: Container | None = None
    """The container the agents run in."""

    def __str__(self) -> str:
        return shlex.join(self.argv)

    @property
    def program(self) -> str:
        """The name of the program."""
        return os.path.basename(self.argv[0])


@dataclass(frozen=True, kw_only=True)
class Launch:
    """All that is started here for one job, and how its agents talk to the controller."""

    engine: Engine
    commands: tuple[StartCommand, ...]
    """In the order of the hosts."""
    channel: Literal["pipes", "dial-back"]
    """The stdin and stdout of each command, or a TLS connection that each agent opens to the controller."""
    pull_limit: float = 0.0
    """Seconds in which an image may have to come first, where no host can say that it pulls one."""

    @property
    def name(self) -> str:
        """The engine's."""
        return self.engine.name

    @property
    def agents(self) -> tuple[AgentSpec, ...]:
        """All agents, in the order of the hosts."""
        return tuple(agent for command in self.commands for agent in command.agents)

    @property
    def lines(self) -> list[str]:
        """The command lines, for people."""
        return [without_scripts(str(command)) for command in self.commands]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The engine, its hosts, and what the user is told about it."""

    engine: Engine
    hosts: tuple[Host, ...]
    allocation: Allocation | None = None
    said: tuple[str, ...] = ()


class Engine(ABC):
    """One way to start agents. Only `name` and `launch` must be given; the rest has defaults.

    Nothing here runs a program of the job: `launch` returns command lines, which the controller starts.
    """

    name: str = ""
    """As in `--engine NAME`."""
    takes_lab: bool = False
    """Whether it reaches the virtual hosts of `--lab`."""
    no_zygote: str = ""
    """Why ranks cannot be forked from a process that has imported torch; empty where they can."""
    no_restarts: str = ""
    """Why `--restarts` cannot work; empty where it can."""

    # Agents that dial back
    key_from: tuple[str, ...] = ()
    """The variables, best first, in which an agent finds its key; none where it is on its command line."""
    unset: tuple[str, ...] = ()
    """Variables of ours that would change what the start commands do."""
    signals_from: str = ""
    """Who else signals the ranks, and means them: a scheduler's name, as in `SIGTERM from Slurm`."""
    killed_at_once: bool = False
    """Whether a start command may kill its agents without a warning, when they still have something to tell."""

    # Failures of a rank that the limits of its job explain
    job_kind: str = ""
    """What a job is called where it owns the limits of a rank: `Slurm job`."""
    more_memory: str = ""
    """What to do when such a job ran out of memory."""
    more_cpus: str = ""
    """How to ask for more CPUs, with an example."""
    services: Mapping[str, str] = {}
    """Its daemons on a host, whose limits ranks inherit, and the systemd unit of each."""

    # Command line
    outside_job: tuple[str, str] | None = None
    """What is wrong and what to do where it is named outside a job of its scheduler; None if it also runs there."""
    allocation_option: str = ""
    """The option that asks for a new allocation, such as `--slurm-args`; see `allocate`."""

    # --- where to run ---------------------------------------------------------------------------------------

    def detect(self, env: Mapping[str, str]) -> Allocation | None:
        """The job of this engine's scheduler that we are in, if any."""
        return None

    def choose(self, spec: RunSpec, env: Mapping[str, str]) -> Choice:
        """The hosts for a run that names this engine: those of its job, else the user's."""
        allocation = self.detect(env)
        if allocation is not None:
            return in_allocation(self, spec, allocation)
        if self.outside_job is not None:
            raise UsageError(f"--engine {self.name}: {self.outside_job[0]}", hint=self.outside_job[1])
        if spec.hosts is None:
            raise UsageError(f"--engine {self.name} needs hosts", hint="add `-H host1,host2` or `--hostfile FILE`")
        return Choice(engine=self, hosts=spec.hosts)

    # --- starting agents ------------------------------------------------------------------------------------

    @abstractmethod
    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """What to start here so that an agent comes up for every host; `folder` is the job's on this machine."""

    def carried(self, env: Mapping[str, str], spec: RunSpec) -> dict[str, str]:
        """The variables that travel to hosts whose agents do not inherit ours."""
        return carried(env)

    def rank_env(self, plan: Plan, rank: int) -> Mapping[str, str]:
        """Variables for a rank besides the plan's own: what it would find had the scheduler started it."""
        return {}

    def login(self, command: StartCommand) -> tuple[str, ...] | None:
        """What a person types before a command to run it on that host: nothing for this machine, None if unknown."""
        return None if command.remote else ()

    # --- failures -------------------------------------------------------------------------------------------

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Why the agents of a command have not come: it ended with this code and printed this."""
        failure = container_failure(command, text)
        if failure is not None:
            return failure
        said = text.splitlines()[-1:] or [f"exit code {code}"]
        return HostError(
            command.agents[0].name,
            f"the agent did not start: {said[0]}",
            hint=f"run the command by hand; it starts with `{shlex.join(command.argv[:3])}`",
        )

    def program_hint(self, command: StartCommand) -> str:
        """What helps where the program of a command is not on this machine."""
        return f"check that it is installed here: `{command.argv[0]} --version`"

    def is_final(self, line: str) -> bool:
        """Whether this line of a command says that an agent will not come, although the command may wait on."""
        return line.startswith("muster: ")

    def why_ended(self, line: str) -> str | None:
        """The reason why the scheduler ended the job, if this line of a command gives one."""
        return None

    def why_over(self, command: StartCommand, code: int | None) -> str | None:
        """Why the scheduler ended the job, if a command that ended with this code took its agents along."""
        return None

    def usual_reason(self, number: int) -> str | None:
        """What a signal to `muster run` mostly means inside a job of this engine."""
        return None

    # --- the command line -----------------------------------------------------------------------------------

    def add_options(self, group: argparse._ArgumentGroup) -> None:  # noqa: B027, most engines have none
        """Add options of its own: each fills the field of RunSpec with its name, and a value of one with the metavar
        ARGS may begin with a dash.
        """

    def allocate(self, asked: str, argv: Sequence[str], target: str, *, dry_run: bool, detach: bool = False) -> int:
        """Get the allocation that `allocation_option` asks for, and run `muster ARGV` inside it; the exit code."""
        raise UsageError(f"--engine {self.name} cannot request an allocation", hint="run this command inside one")

    @property
    def batch(self) -> Scheduler | None:
        """How `muster submit` writes and queues a batch job; None without a batch system."""
        return None


def in_allocation(engine: Engine, spec: RunSpec, allocation: Allocation) -> Choice:
    """The hosts of a scheduler's job, or those of them that the user picked."""
    nothing_said = spec.hosts is None and spec.nproc is None
    return Choice(
        engine=engine,
        hosts=allocation.pick(spec.hosts, spec.nproc),
        allocation=allocation,
        said=(f"detected: {allocation}", *(allocation.notes if nothing_said else ())),
    )


def this_host() -> Host:
    """The machine `muster run` runs on."""
    return Host(name=socket.gethostname().partition(".")[0] or "localhost")


def one_per_host(hosts: Sequence[Host], *, inherits: bool = False) -> tuple[AgentSpec, ...]:
    """An agent for each host, known by the host's name when it dials back."""
    return tuple(
        AgentSpec(host=host, name=name, key=host.name, inherits=inherits)
        for host, name in zip(hosts, labels(hosts), strict=True)
    )


def in_container(agent: tuple[str, ...], box: Container | None, *, shares_processes: bool = False) -> tuple[str, ...]:
    """The command line of an agent, inside the container if there is one."""
    return replace(box, shares_processes=shares_processes).run(agent) if box else agent


def container_failure(command: StartCommand, text: str) -> MusterError | None:
    """What went wrong with the container of a command, if this text says so."""
    reason = container_reason(command.box, text) if command.box is not None else None
    if reason is None:
        return None
    host = host_in(text)
    return HostError(host, reason[0], hint=reason[1]) if host else MusterError(reason[0], hint=reason[1])


def words(text: str) -> tuple[str, ...]:
    """The value of an option as a shell would cut it into words."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}`: {str(error).lower()}") from None


def leaders(agents: Sequence[AgentSpec]) -> list[int]:
    """The first agent of each host, as positions: it speaks for the host where there are several."""
    seen: set[str] = set()
    found: list[int] = []
    for position, agent in enumerate(agents):
        if agent.name not in seen:
            seen.add(agent.name)
            found.append(position)
    return found
