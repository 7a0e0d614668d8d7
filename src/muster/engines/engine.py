"""The interface of an engine: what starts the agents of a job on its hosts (see docs/engines/adding.md)."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    from muster.engines.kubernetes.pods import Pod
    from muster.engines.requeue import Requeue
    from muster.submit.scheduler import Scheduler

PIPED_AGENT = bootstrap.COMMAND
"""Code for `python -c` that starts an agent on stdin and stdout; contains nothing that a shell would expand."""

DIALING_AGENT = dial_back.COMMAND
"""The same for an agent that dials back; it reads its order from MUSTER_DIAL or from the file ORDER_FILE."""

ORDER_FILE = "{order}"
"""Placeholder in a command line for the file with the order, for agents that the environment does not reach."""


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """One agent to start: for a host, or for one rank of it."""

    host: Host
    name: str
    """Prefix of each line of its ranks; unique per host."""
    key: str = ""
    """Identifies an agent that dials back."""
    rank: int | None = None
    """The one rank it serves; None for all ranks of its host."""
    inherits: bool = False
    """Whether the agent inherits the environment of `muster run`."""
    here: bool = False
    """Whether it runs on the same machine as `muster run`, outside any container."""
    node: str = ""
    """The node of its pod, if known."""

    def why_silent(self, seconds: float) -> str:
        """Why its host is given up after so many seconds of silence."""
        machine = f"its node {self.node}" if self.node else "it"
        return f"no message from it for {seconds:.0f} s; {machine} is down or hung, or its network is cut"


@dataclass(frozen=True, kw_only=True)
class StartCommand:
    """A command that is run on this machine to start one or more agents."""

    argv: tuple[str, ...]
    """Empty if nobody needs to start the agent, because it is started by others and dials in by itself."""
    agents: tuple[AgentSpec, ...]
    """Exactly one if the channel is pipes."""
    remote: bool = True
    """Whether the agents run on other machines, so that this process is only the connection to them."""
    box: Container | None = None
    """The container the agents run in."""
    bridges: tuple[tuple[str, ...], ...] = ()
    """Commands that run PIPED_AGENT on the agent's host, outside its container, to reach it over a new connection."""
    pod: Pod | None = None
    """The pod in which the agent runs; it is reached through `kubectl proxy`, unless that is not allowed."""

    def __str__(self) -> str:
        return shlex.join(self.argv)

    @property
    def program(self) -> str:
        """The name of the program, without its directory."""
        return os.path.basename(self.argv[0])


@dataclass(frozen=True, kw_only=True)
class KnownPort:
    """What agents that others start know of the controller's port: its number, and the secret they share with it."""

    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """All commands that are started for one job, and how its agents communicate with the controller."""

    engine: Engine
    commands: tuple[StartCommand, ...]
    """In the order of the hosts."""
    channel: Literal["pipes", "dial-back", "pods"]
    """How agents communicate with the controller.

    `pipes`: stdin and stdout of each command; `dial-back`: a TLS connection that each agent opens; `pods`: the same as
    `pipes`, through one `kubectl proxy` for all.
    """
    pull_limit: float = 0.0
    """Extra seconds for pulling an image, for engines whose hosts cannot report that they are pulling one."""
    can_lack_hosts: bool = False
    """Whether the job can run without some of its hosts, each of which then has its own command."""
    orphaned: str = ""
    """A shell command that an agent runs when it has lost the controller and its ranks have ended."""
    notes: tuple[str, ...] = ()
    """Short sentences for the user about the commands."""
    attach: tuple[str, ...] = ()
    """The command that makes the session of a process part of the scheduler's job; agents add the pid of each rank."""
    requeue: Requeue | None = None
    """How the surrounding job of a scheduler is requeued, if `muster submit --requeue` asked for that."""
    known_port: KnownPort | None = None
    """The port to listen on; None for a free one, of which only agents that are started from here know."""

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.engine.name

    @property
    def agents(self) -> tuple[AgentSpec, ...]:
        """All agents, in the order of the hosts."""
        return tuple(agent for command in self.commands for agent in command.agents)

    @property
    def lines(self) -> list[str]:
        """The command lines, for display."""
        return [without_scripts(str(command)) for command in self.commands if command.argv]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The engine, its hosts, and messages for the user about the choice."""

    engine: Engine
    hosts: tuple[Host, ...]
    allocation: Allocation | None = None
    said: tuple[str, ...] = ()


class Engine(ABC):
    """One way to start agents. Only `name` and `launch` are required; everything else has defaults.

    An engine does not run programs of the job itself: `launch` returns command lines that the controller starts.
    """

    name: str = ""
    """The value for `--engine`."""
    takes_lab: bool = False
    """Whether it can reach the virtual hosts of `--lab`."""
    no_zygote: str = ""
    """Error for options that need the zygote; empty if the engine supports it."""
    no_restarts: str = ""
    """Error for `--restarts`; empty if the engine supports restarts."""
    no_spares: str = ""
    """Error for `--spares`, `--min-hosts` and `--rejoin`; empty if the engine can replace lost hosts."""

    # Agents that dial back
    key_from: tuple[str, ...] = ()
    """Environment variables in which an agent finds its key, in order of preference; empty if it is an argument."""
    unset: tuple[str, ...] = ()
    """Environment variables to remove for the start commands, because they would change their behavior."""
    signals_from: str = ""
    """Name of the scheduler whose signals are meant for the ranks, as in `SIGTERM from Slurm`."""
    killed_at_once: bool = False
    """Whether a start command may kill its agents without warning, before they have sent their last messages."""

    missing_hint: str = ""
    """The hint if an agent has not connected in time; empty for the usual one about firewalls."""
    exits_with_job: bool = False
    """Whether agents exit with the exit code of the job, because the scheduler looks at each of them."""
    sigterm_is_notice: bool = False
    """Whether SIGTERM to an agent is a notice that its host goes away, also if no other host can replace it."""

    # Rank failures that are explained by the limits of the scheduler's job
    job_kind: str = ""
    """What the scheduler's job is called in explanations: `Slurm job`."""
    more_memory: str = ""
    """How to fix a job that ran out of memory."""
    more_shm: str = ""
    """How to get a larger /dev/shm, where that is not a matter of the host."""
    more_cpus: str = ""
    """Example of how to request more CPUs."""
    services: Mapping[str, str] = {}
    """The scheduler's daemons on a host, whose limits the ranks inherit, and the systemd unit of each."""

    # Command line
    outside_job: tuple[str, str] | None = None
    """Error and hint if the engine is used outside a job of its scheduler; None if that is allowed."""
    allocation_option: str = ""
    """The option that requests a new allocation, such as `--slurm-args`; see `allocate`."""

    # --- where to run ---------------------------------------------------------------------------------------

    def detect(self, env: Mapping[str, str]) -> Allocation | None:
        """The scheduler's job that this process runs in, if any."""
        return None

    def choose(self, spec: RunSpec, env: Mapping[str, str]) -> Choice:
        """Choose the hosts for a run with this engine: those of the scheduler's job, or those the user gave."""
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
        """Return the commands that start an agent for every host; `folder` is the job directory on this machine."""

    def carried(self, env: Mapping[str, str], spec: RunSpec) -> dict[str, str]:
        """The environment variables to send to hosts whose agents do not inherit them."""
        return carried(env)

    def rank_env(self, plan: Plan, rank: int) -> Mapping[str, str]:
        """Additional environment variables for a rank: those it would have if the scheduler had started it."""
        return {}

    def login(self, command: StartCommand) -> tuple[str, ...] | None:
        """The prefix to type before a command to run it on that host: empty for this machine, None if unknown."""
        return None if command.remote else ()

    def launch_one(self, launch: Launch, agent: AgentSpec) -> StartCommand | None:
        """The command that starts the agent of one host again; None if the engine cannot do that."""
        return next((command for command in launch.commands if command.agents == (agent,)), None)

    def requeue(self, env: Mapping[str, str]) -> Requeue | None:
        """How the scheduler's job that this process runs in is requeued; None if that was not requested."""
        return None

    def cancel_command(self, env: Mapping[str, str]) -> str:
        """The scheduler's command that ends the job that this process runs in, from any host; empty without one."""
        return ""

    # --- failures -------------------------------------------------------------------------------------------

    def misplaced(self, agent: AgentSpec, host: str, agents: Sequence[AgentSpec]) -> MusterError | None:
        """The error if the agent reports the name of a host on which it was not to be started."""
        return None

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Explain why a command with this exit code and output did not start its agents."""
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
        """The hint if the program of a command is missing on this machine."""
        return f"check that it is installed here: `{command.argv[0]} --version`"

    def is_final(self, line: str) -> bool:
        """Whether this line of output means that an agent will not start, although the command may keep running."""
        return line.startswith("muster: ")

    def why_ended(self, line: str) -> str | None:
        """Why the scheduler ended the job, if this line of output says so."""
        return None

    def ended_agents(self, line: str) -> Sequence[str]:
        """The hosts whose agents have ended, if this line of output says so."""
        return ()

    def killed_agent(self, line: str) -> tuple[str, int] | None:
        """The key of an agent that was killed and the signal, if this line says so and all others then end too."""
        return None

    def why_over(self, command: StartCommand, code: int | None) -> str | None:
        """Why the scheduler ended the job, if a command that exited with this code ended its agents."""
        return None

    def usual_reason(self, number: int) -> str | None:
        """What a signal to `muster run` usually means inside a job of this engine's scheduler."""
        return None

    # --- the command line -----------------------------------------------------------------------------------

    def add_options(self, group: argparse._ArgumentGroup) -> None:  # noqa: B027, most engines have none
        """Add command-line options of the engine; each sets the RunSpec field with its name.

        Values of options with the metavar ARGS may start with a dash.
        """

    def allocate(self, asked: str, argv: Sequence[str], target: str, *, dry_run: bool, detach: bool = False) -> int:
        """Get the allocation that `allocation_option` requests, run `muster ARGV` in it, and return the exit code."""
        raise UsageError(f"--engine {self.name} cannot request an allocation", hint="run this command inside one")

    @property
    def batch(self) -> Scheduler | None:
        """The scheduler that `muster submit` uses; None without a batch system."""
        return None


def in_allocation(engine: Engine, spec: RunSpec, allocation: Allocation) -> Choice:
    """Choose the hosts of a scheduler's job, or those of them that the user selected."""
    nothing_said = spec.nproc is None and (spec.hosts is None or any(host.slots is None for host in spec.hosts))
    return Choice(
        engine=engine,
        hosts=allocation.pick(spec.hosts, spec.nproc),
        allocation=allocation,
        said=(f"detected: {allocation}", *(allocation.notes if nothing_said else ())),
    )


def can_lack_hosts(spec: RunSpec) -> bool:
    """Whether a job with these options can run without some of its hosts."""
    return bool(spec.spares or spec.min_hosts)


def this_host() -> Host:
    """The machine that `muster run` runs on."""
    return Host(name=socket.gethostname().partition(".")[0] or "localhost")


def one_per_host(hosts: Sequence[Host], *, inherits: bool = False) -> tuple[AgentSpec, ...]:
    """One agent per host; its key is the host name."""
    return tuple(
        AgentSpec(host=host, name=name, key=host.name, inherits=inherits)
        for host, name in zip(hosts, labels(hosts), strict=True)
    )


def in_container(agent: tuple[str, ...], box: Container | None, *, shares_processes: bool = False) -> tuple[str, ...]:
    """The command line of an agent, wrapped in the container if there is one."""
    return replace(box, shares_processes=shares_processes).run(agent) if box else agent


def container_failure(command: StartCommand, text: str) -> MusterError | None:
    """The error of the command's container, if this output contains one."""
    reason = container_reason(command.box, text) if command.box is not None else None
    if reason is None:
        return None
    host = host_in(text)
    return HostError(host, reason[0], hint=reason[1]) if host else MusterError(reason[0], hint=reason[1])


def words(text: str) -> tuple[str, ...]:
    """Split the value of an option into words as a shell would."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}`: {str(error).lower()}") from None


def leaders(agents: Sequence[AgentSpec]) -> list[int]:
    """The positions of the first agent of each host, which reports for the host if there are several."""
    seen: set[str] = set()
    found: list[int] = []
    for position, agent in enumerate(agents):
        if agent.name not in seen:
            seen.add(agent.name)
            found.append(position)
    return found
