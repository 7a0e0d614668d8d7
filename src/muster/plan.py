"""The plan: which rank runs on which host and GPU, the rendezvous, and the environment of each rank. Pure data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.errors import HostError, UsageError
from muster.hosts import Host

FOUND_AT_START = "(found at the start)"
"""Placeholder in a dry run for values that only a running host knows."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One host's part of the plan."""

    host: Host
    """The host with a known number of slots."""
    name: str
    """The unique name shown before each line of its ranks."""
    first_rank: int
    threads: int
    """OMP_NUM_THREADS of each rank; 0 does not set it."""
    env: Mapping[str, str]
    """Environment variables for every rank of this host: GPUs, network interface."""

    @property
    def slots(self) -> int:
        """Number of ranks on this host."""
        return self.host.slots or 0

    @property
    def ranks(self) -> range:
        """The ranks of this host."""
        return range(self.first_rank, self.first_rank + self.slots)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything decided before the ranks start."""

    job_id: str
    placements: tuple[Placement, ...]
    master_addr: str = FOUND_AT_START
    master_port: int = 0
    restarts: int = 0
    role: str = "default"
    has_store: bool = True
    """Whether the job hosts the store (TCPStore); else rank 0 opens it, on a port chosen by the script."""
    lost: tuple[str, ...] = ()
    """What ended the attempt before this one: a sentence for each lost host, or one for the rank that failed."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(placement.slots for placement in self.placements)

    def at(self, address: str, port: int) -> Plan:
        """This plan with the address and port of the rendezvous."""
        return replace(self, master_addr=address, master_port=port)

    def as_data(self) -> dict[str, Any]:
        """The plan as saved in the job directory."""
        return {
            "job": self.job_id,
            "world_size": self.world_size,
            "master": f"{self.master_addr}:{self.master_port}",
            "hosts": [
                {
                    "host": str(place.host),
                    "ranks": list(place.ranks),
                    "threads": place.threads,
                    "env": dict(place.env),
                }
                for place in self.placements
            ],
        }

    def named(self, name: str) -> Placement:
        """The placement of the host with this label."""
        return next(placement for placement in self.placements if placement.name == name)

    def placement_of(self, rank: int) -> Placement:
        """The host that runs a rank."""
        return next(placement for placement in self.placements if rank in placement.ranks)


def labels(hosts: Sequence[Host]) -> list[str]:
    """A unique name for each host, with user and port where hosts share a name (containers on one machine)."""
    often = Counter(host.name for host in hosts)
    return [
        host.name if often[host.name] == 1 else f"{host.destination}{f':{host.port}' if host.port else ''}"
        for host in hosts
    ]


def fill_slots(host: Host, *, nproc: int | None, gpus: int) -> Host:
    """Decide the number of ranks of a host: its slots, else --nproc, its GPUs, tasks of the scheduler, or one."""
    said = host.slots if host.slots is not None else nproc
    return replace(host, slots=said if said is not None else gpus or host.tasks or 1)


def check_gpus(host: Host, gpus: int) -> None:
    """Reject more ranks than GPUs, and GPUs the host does not have; a host without GPUs uses its CPU."""
    if gpus == 0:
        if host.gpus is not None:
            raise HostError(
                host.name,
                f"GPUs {_join(host.gpus)} were requested, but the host has no GPU",
                hint=_cpu_hint(host),
            )
        return
    if host.gpus is not None:
        missing = [gpu for gpu in host.gpus if gpu >= gpus]
        if missing:
            have = "GPU 0 only" if gpus == 1 else f"GPUs 0 to {gpus - 1}"
            raise HostError(
                host.name,
                f"GPU {_join(missing)} does not exist; the host has {have}",
                hint=f"write `{host.name}:{gpus}`",
            )
    elif (host.slots or 0) > gpus:
        raise HostError(
            host.name,
            f"{host.slots} ranks need {host.slots} GPUs, but the host has {gpus}",
            hint=f"write `{host.name}:{gpus}`, or `--env CUDA_VISIBLE_DEVICES=` to run on the CPU",
        )


def make_plan(
    job_id: str,
    hosts: Sequence[Host],
    *,
    threads: Sequence[int],
    restarts: int,
    user_env: Mapping[str, str],
    visible: Sequence[str | None] | None = None,
    role: str = "default",
    has_store: bool = True,
    names: Sequence[str] | None = None,
) -> Plan:
    """Assign a rank to every slot, in the order of the hosts.

    `visible` is the existing CUDA_VISIBLE_DEVICES of each host, if known. `names` are the labels of the hosts if they
    are only some of the hosts of the job.
    """
    if not hosts:
        raise UsageError("no hosts to run on", hint="write `-H name:8`, or omit -H to use this machine")
    placements: list[Placement] = []
    first = 0
    visible = visible or [None] * len(hosts)
    for host, name, count, seen in zip(hosts, names or labels(hosts), threads, visible, strict=True):
        env = {} if host.gpus is None else gpu_environment(host.gpus, seen, user_env)
        placements.append(Placement(host=host, name=name, first_rank=first, threads=count, env=env))
        first += host.slots or 0
    return Plan(job_id=job_id, placements=tuple(placements), restarts=restarts, role=role, has_store=has_store)


def gpu_environment(gpus: Sequence[int], visible: str | None, user_env: Mapping[str, str]) -> dict[str, str]:
    """Make exactly these GPUs visible, numbered as in nvidia-smi (the order of CUDA may differ).

    If a scheduler or container already limits the visible GPUs, the numbers are indexes into those.
    """
    if visible is not None:
        ours = [part.strip() for part in visible.split(",") if part.strip()]
        return {"CUDA_VISIBLE_DEVICES": ",".join(ours[gpu] for gpu in gpus)}
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    if "CUDA_DEVICE_ORDER" not in user_env:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return env


def default_threads(cpus: int, slots: int) -> int:
    """The CPUs of a host divided by its ranks; torchrun always sets one."""
    return max(1, cpus // max(1, slots))


def rank_environment(plan: Plan, rank: int, *, attempt: int = 0) -> dict[str, str]:
    """The environment variables that torchrun would set for this rank, and those of its host."""
    placement = plan.placement_of(rank)
    local = rank - placement.first_rank
    env = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(placement.slots),
        "GROUP_RANK": str(plan.placements.index(placement)),
        "GROUP_WORLD_SIZE": str(len(plan.placements)),
        "ROLE_NAME": plan.role,
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port) if plan.master_port else FOUND_AT_START,
        "TORCHELASTIC_RUN_ID": plan.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(plan.has_store),
        "MUSTER_JOB": plan.job_id,
    }
    if plan.lost:
        env["MUSTER_LOST"] = json.dumps(plan.lost)
    if placement.threads:
        env["OMP_NUM_THREADS"] = str(placement.threads)
    return {**env, **placement.env}


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _cpu_hint(host: Host) -> str:
    return f"write `{host.name}:{host.slots}` to run {host.slots} ranks on its CPU"
