"""Which engine runs a job, and on which hosts: from what the user said and what the environment shows."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from muster.engines.allocation import Allocation
from muster.engines.local.engine import is_this_machine
from muster.engines.pbs.environment import in_pbs_job
from muster.engines.slurm.environment import in_slurm_allocation, read_slurm
from muster.errors import HostError, UsageError
from muster.hosts import Host
from muster.spec import RunSpec

Name = Literal["auto", "local", "ssh", "slurm", "pbs", "mpi"]

NAMES: tuple[Name, ...] = ("auto", "local", "ssh", "slurm", "pbs", "mpi")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the user said about where to run."""

    engine: Name = "auto"
    hosts: tuple[Host, ...] | None = None
    """Those of -H, --hostfile or --lab; None when none were named."""
    nproc: int | None = None
    virtual: bool = False
    """Whether the hosts are those of --lab, which no scheduler knows."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The engine, its hosts, and what the user is told about it."""

    engine: Literal["local", "ssh", "slurm", "pbs", "mpi"]
    hosts: tuple[Host, ...]
    allocation: Allocation | None = None
    said: tuple[str, ...] = ()


def choose(spec: RunSpec, env: Mapping[str, str]) -> Choice:
    """Settle the engine."""
    from muster.engines.pbs.programs import read_pbs_here

    wish = Wish(engine=cast(Name, spec.engine), hosts=spec.hosts, nproc=spec.nproc, virtual=bool(spec.lab))
    return choose_for(wish, env, read_pbs=read_pbs_here)


def choose_for(wish: Wish, env: Mapping[str, str], *, read_pbs: Callable[[Mapping[str, str]], Allocation]) -> Choice:
    """Settle the engine; `read_pbs` is called only inside a PBS job."""
    if wish.virtual and wish.engine not in ("auto", "ssh"):
        raise UsageError(
            f"--lab makes hosts for ssh, and --engine {wish.engine} has others",
            hint="`muster lab up 2 --slurm --mpi` makes a cluster that stays; `muster lab ssh h1` gets you into it",
        )
    if wish.engine == "local":
        return Choice(engine="local", hosts=(_only_here(wish.hosts),))
    if wish.engine == "ssh" or wish.virtual:
        if wish.hosts is None:
            raise UsageError("--engine ssh: no hosts are named", hint="write `-H host1,host2`, or `--hostfile FILE`")
        return Choice(engine="ssh", hosts=wish.hosts)
    allocation = _allocation(wish.engine, env, read_pbs)
    if allocation is None:
        hosts = wish.hosts or (this_host(),)
        if wish.engine == "mpi":
            return Choice(engine="mpi", hosts=hosts)
        return Choice(engine="local" if wish.hosts is None else "ssh", hosts=hosts)
    detected = f"detected: {allocation}"
    if wish.hosts is not None and wish.engine in ("auto", "mpi") and not _all_given(wish.hosts, allocation):
        engine = "mpi" if wish.engine == "mpi" else "ssh"
        return Choice(engine=engine, hosts=wish.hosts, said=(f"{detected}; -H names other hosts, so {engine} is used",))
    return Choice(
        engine="mpi" if wish.engine == "mpi" else allocation.engine,
        hosts=_given_hosts(wish, allocation),
        allocation=allocation,
        said=(detected, *(allocation.notes if wish.hosts is None and wish.nproc is None else ())),
    )


def this_host() -> Host:
    """The machine `muster run` runs on."""
    return Host(name=socket.gethostname().partition(".")[0] or "localhost")


def _only_here(hosts: Sequence[Host] | None) -> Host:
    if hosts is None:
        return this_host()
    for host in hosts:
        if not is_this_machine(host):
            raise UsageError(f"--engine local: {host.name} is not this machine", hint="leave --engine out to use ssh")
    if len(hosts) > 1:
        raise UsageError("--engine local: -H names several hosts", hint="leave --engine out to use ssh")
    return hosts[0]


def _allocation(
    engine: Name, env: Mapping[str, str], read_pbs: Callable[[Mapping[str, str]], Allocation]
) -> Allocation | None:
    """What a scheduler gave us, if it is wanted; an engine that needs one does not go on without."""
    if engine == "slurm" or (engine != "pbs" and in_slurm_allocation(env)):
        if not in_slurm_allocation(env):
            raise UsageError(
                "--engine slurm: this is not inside a Slurm allocation (SLURM_JOB_ID is not set)",
                hint='say what to ask for: --slurm-args "-N2 --gpus-per-node=4"; or use `muster submit --slurm`',
            )
        return read_slurm(env)
    if engine == "pbs" or in_pbs_job(env):
        if not in_pbs_job(env):
            raise UsageError(
                "--engine pbs: this is not inside a PBS job (PBS_JOBID is not set)",
                hint="use `muster submit --pbs`, or `qsub -I` and then `muster run`",
            )
        return read_pbs(env)
    return None


def _same(host: Host, other: Host) -> bool:
    return other.name in (host.name, host.name.partition(".")[0]) or host.name == other.name.partition(".")[0]


def _all_given(hosts: Sequence[Host], allocation: Allocation) -> bool:
    return all(any(_same(host, given) for given in allocation.hosts) for host in hosts)


def _given_hosts(wish: Wish, allocation: Allocation) -> tuple[Host, ...]:
    """The hosts of the allocation, or those of them the user picked; --nproc wins over what the scheduler counts."""
    if wish.hosts is None:
        return tuple(host if wish.nproc is None else replace(host, slots=None) for host in allocation.hosts)
    picked: list[Host] = []
    for host in wish.hosts:
        given = next((other for other in allocation.hosts if _same(host, other)), None)
        if given is None:
            names = ", ".join(other.name for other in allocation.hosts)
            raise HostError(host.name, f"it is not in {allocation} ({names})", hint="leave -H out to use all of them")
        slots = host.slots if host.slots is not None or wish.nproc is not None else given.slots
        picked.append(replace(given, slots=slots, gpus=host.gpus))
    return tuple(picked)
