"""From a choice to the engine the controller runs: seats and command lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.engines.choice import Choice
from muster.errors import UsageError
from muster.hosts import Host
from muster.plan import labels
from muster.transports import Command, Engine, Piped, Seat, is_this_machine, local_command, ssh_command
from muster.transports.container import Container
from muster.transports.slurm import slurm_engine


@dataclass(frozen=True, kw_only=True)
class Means:
    """How agents are started, whichever engine does it."""

    python: str | None = None
    """The interpreter on the hosts, if the user named one."""
    box: Container | None = None
    ssh: tuple[str, ...] = ("ssh",)
    """The ssh program with options that come before all others: --lab has its own."""
    only_ssh: bool = False
    """Log in even to a host that has this machine's name."""


def build(choice: Choice, means: Means) -> Engine:
    """The engine for these hosts."""
    if choice.engine in ("local", "ssh"):
        return _piped(choice, means)
    if choice.engine == "slurm" and choice.allocation is not None:
        seats = _seats(choice.hosts, inherits=means.box is None, key=lambda host: host.name)
        return slurm_engine(choice.allocation, seats, python=means.python, box=means.box)
    raise UsageError(f"--engine {choice.engine} is not built yet")


def _piped(choice: Choice, means: Means) -> Piped:
    seats: list[Seat] = []
    commands: list[Command] = []
    for host, name in zip(choice.hosts, labels(choice.hosts), strict=True):
        here = is_this_machine(host) and not means.only_ssh
        seats.append(Seat(host=host, name=name, inherits=here and means.box is None, here=here and means.box is None))
        if here:
            commands.append(local_command(host, python=means.python))
        else:
            commands.append(ssh_command(host, python=means.python, ssh=means.ssh))
    return Piped(name=choice.engine, seats=tuple(seats), commands=tuple(commands))


def _seats(hosts: Sequence[Host], *, inherits: bool, key: Callable[[Host], str]) -> list[Seat]:
    return [
        Seat(host=host, name=name, key=key(host), inherits=inherits)
        for host, name in zip(hosts, labels(hosts), strict=True)
    ]
