"""From a choice to the engine the controller runs: seats and command lines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from muster.engines.choice import Choice
from muster.engines.command import Command
from muster.engines.container.container import Container
from muster.engines.engine import AgentSpec, Dialed, Engine, Piped
from muster.engines.local.engine import is_this_machine, local_command
from muster.engines.mpi.engine import mpi_engine
from muster.engines.mpi.local_mpi import find_mpi, networks_to, with_slots
from muster.engines.pbs.engine import attached, pbs_engine
from muster.engines.pbs.environment import nodefile_lines, nodefile_text
from muster.engines.pbs.programs import pbs_program
from muster.engines.slurm.engine import slurm_engine
from muster.engines.slurm.job_gpus import gpus_of_job
from muster.engines.ssh.engine import ssh_command
from muster.errors import MusterError
from muster.hosts import Host
from muster.job import job_folder
from muster.plan import labels
from muster.spec import RunSpec


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
    nproc: int | None = None
    pbs_start: Literal["tm", "ssh"] = "tm"
    mpi_args: tuple[str, ...] = ()


def build(choice: Choice, spec: RunSpec, *, job_id: str) -> Engine:
    """The engine for these hosts."""
    box = None
    if spec.image is not None:
        box = Container(
            image=spec.image,
            program=spec.container or "",
            args=spec.container_args,
            cwd="" if spec.sync else spec.cwd,
            folder=str(job_folder(job_id)),
        )
    means = Means(
        python=spec.python,
        box=box,
        ssh=spec.ssh,
        only_ssh=bool(spec.lab),
        nproc=spec.nproc,
        pbs_start=spec.pbs_start,
        mpi_args=spec.mpi_args,
    )
    if choice.engine == "mpi":
        return _mpi(choice, means)
    if choice.engine == "slurm" and choice.allocation is not None:
        _need("srun", "slurm")
        seats = _seats(choice.hosts, inherits=means.box is None)
        gpus = gpus_of_job(os.environ)
        return slurm_engine(choice.allocation, seats, python=means.python, box=means.box, gpus=gpus)
    if choice.engine == "pbs" and choice.allocation is not None and means.pbs_start == "tm":
        return _pbs(choice, means)
    return _piped(choice, means)


def _mpi(choice: Choice, means: Means) -> Dialed:
    exported = [name for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ and means.box is None]
    return mpi_engine(
        find_mpi(),
        with_slots(choice.hosts, means.nproc),
        python=means.python,
        args=means.mpi_args,
        exported=exported,
        networks=networks_to(choice.hosts),
        box=means.box,
    )


def _pbs(choice: Choice, means: Means) -> Dialed:
    pbsdsh = pbs_program("pbsdsh", os.environ)
    if shutil.which(pbsdsh) is None:
        raise MusterError("--engine pbs: there is no pbsdsh on this host", hint="`--pbs-start ssh` does without it")
    return pbs_engine(
        _seats(choice.hosts, inherits=False),
        nodefile_lines(nodefile_text(os.environ)),
        pbsdsh=pbsdsh,
        python=means.python,
        library_path=os.environ.get("LD_LIBRARY_PATH"),
        box=means.box,
    )


def _need(program: str, engine: str) -> None:
    if shutil.which(program) is None:
        raise MusterError(
            f"--engine {engine}: there is no `{program}` on this machine",
            hint="load the module that has it; `--engine ssh -H host1,host2` does without it",
        )


def _piped(choice: Choice, means: Means) -> Piped:
    seats: list[AgentSpec] = []
    commands: list[Command] = []
    under = ""
    if choice.engine == "pbs" and choice.allocation is not None:
        under = attached(choice.allocation.id, pbs_program("pbs_attach", os.environ))
    for host, name in zip(choice.hosts, labels(choice.hosts), strict=True):
        here = is_this_machine(host) and not means.only_ssh
        bare = here and means.box is None
        seats.append(AgentSpec(host=host, name=name, inherits=bare, here=bare))
        if here:
            commands.append(local_command(host, python=means.python, box=means.box))
        else:
            commands.append(ssh_command(host, python=means.python, ssh=means.ssh, under=under, box=means.box))
    return Piped(name=choice.engine, seats=tuple(seats), commands=tuple(commands))


def _seats(hosts: Sequence[Host], *, inherits: bool) -> list[AgentSpec]:
    names = labels(hosts)
    return [
        AgentSpec(host=host, name=name, key=host.name, inherits=inherits)
        for host, name in zip(hosts, names, strict=True)
    ]
