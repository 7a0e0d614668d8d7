"""An engine as the controller sees it: who sits where, and what is started here to bring the agents up."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from muster.engines.command import Command
from muster.engines.container.container import Container, container_reason, host_in, without_scripts
from muster.errors import HostError, MusterError
from muster.hosts import Host
from muster.plan import Plan


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """The place of one agent: a host, or under MPI one rank of it."""

    host: Host
    name: str
    """What stands before each line of its ranks; no two hosts have the same."""
    key: str = ""
    """What an agent that dials says of itself, so that it is known whose place it takes."""
    rank: int | None = None
    """The one rank it serves; None for all of its host."""
    inherits: bool = False
    """Whether the agent has the environment of `muster run` already."""
    here: bool = False
    """Whether this is the machine `muster run` runs on, outside any container."""


@dataclass(frozen=True, kw_only=True)
class Piped:
    """One child process per host, whose stdin and stdout are the channel: local and ssh."""

    name: str
    seats: tuple[AgentSpec, ...]
    commands: tuple[Command, ...]
    """In the order of the seats."""

    @property
    def lines(self) -> list[str]:
        """The command lines, for people."""
        return [without_scripts(str(command)) for command in self.commands]

    def usual_reason(self, number: int) -> str | None:
        """What a signal to `muster run` mostly means here: somebody sent it."""
        return None


@dataclass(frozen=True, kw_only=True)
class StartCommand:
    """One process started here that brings up the agents of some seats, which then dial back."""

    argv: tuple[str, ...]
    seats: tuple[AgentSpec, ...]

    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True, kw_only=True)
class Dialed:
    """Agents that dial back, because what starts them gives them no stdin: slurm, pbs and mpi."""

    name: str
    summons: tuple[StartCommand, ...]
    seat_from: tuple[str, ...]
    """The variables, best first, in which an agent finds its seat's key."""
    explain: Callable[[StartCommand, int | None, str], MusterError]
    """What it means that a summons ended with this code and these words before its agents had come."""
    is_final: Callable[[str], bool] = lambda line: line.startswith("muster: ")
    """Whether this line of a summons says that an agent will not come, although the summons itself may wait on."""
    why_ended: Callable[[str], str | None] = lambda line: None
    """The reason why a scheduler ended the job, if this line of a summons tells one."""
    pull_limit: float = 0.0
    """Seconds in which an image may have to come first, where no host can say that it pulls one."""
    why_over: Callable[[StartCommand, int | None], str | None] = lambda summons, code: None
    """The same where a summons ended with this code while its agents were up, if that ended them."""
    killed_at_once: bool = False
    """Whether what starts the agents may kill them without a warning, when they still have something to tell."""
    scheduler: str = ""
    """The batch system whose signals are for the ranks."""
    rank_env: Callable[[Plan, int], Mapping[str, str]] = lambda plan, rank: {}
    """Variables for a rank beside the plan's own: what it would find had the scheduler started it."""
    unset: tuple[str, ...] = ()
    """Variables of ours that would change what the summons does."""

    def usual_reason(self, number: int) -> str | None:
        """What a signal to `muster run` mostly means inside a job of this scheduler."""
        if self.scheduler != "PBS" or number != signal.SIGTERM:
            return None
        return "in a PBS job that is qdel, or the end of its walltime"

    @property
    def seats(self) -> tuple[AgentSpec, ...]:
        """All places, in the order of the hosts."""
        return tuple(seat for summons in self.summons for seat in summons.seats)

    @property
    def lines(self) -> list[str]:
        """The command lines, for people."""
        return [without_scripts(str(summons)) for summons in self.summons]


Engine = Piped | Dialed

Explain = Callable[[StartCommand, int | None, str], MusterError]


def or_container(box: Container | None, otherwise: Explain) -> Explain:
    """Explain a failure by the container where it is one, else as the engine does."""

    def explain(summons: StartCommand, code: int | None, text: str) -> MusterError:
        reason = container_reason(box, text) if box is not None else None
        if reason is None:
            return otherwise(summons, code, text)
        host = host_in(text)
        return HostError(host, reason[0], hint=reason[1]) if host else MusterError(reason[0], hint=reason[1])

    return explain


ORDER_FILE = "{order}"
"""Stands in a summons' command line for the file with the order, where the environment does not reach the agent."""


def leaders(seats: Sequence[AgentSpec]) -> list[int]:
    """The first seat of each host, as positions: it speaks for the host where there are several."""
    seen: set[str] = set()
    found: list[int] = []
    for position, seat in enumerate(seats):
        if seat.name not in seen:
            seen.add(seat.name)
            found.append(position)
    return found
