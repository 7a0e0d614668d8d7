"""The MPI of this machine: its launcher, and the networks it may use."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from muster.engines.local.engine import is_this_machine
from muster.errors import MusterError
from muster.hosts import Host
from muster.plan import fill_slots
from muster.shared.machine import gpu_count

Flavour = Literal["openmpi", "mpich", "intel"]

_SIGNS: tuple[tuple[str, Flavour], ...] = (
    ("Open MPI", "openmpi"),
    ("OpenRTE", "openmpi"),
    ("PRRTE", "openmpi"),
    ("Intel(R) MPI", "intel"),
    ("HYDRA", "mpich"),
)


@dataclass(frozen=True, kw_only=True)
class Mpi:
    """The MPI launcher of this machine."""

    program: str
    flavour: Flavour
    version: int
    """The major version of Open MPI, 4 or 5; the first number of the version text otherwise, or 0."""


def identify(program: str, version_text: str) -> Mpi | None:
    """Identify a launcher from the output of its `--version`; None if it is unknown."""
    for sign, flavour in _SIGNS:
        if sign in version_text:
            number = re.search(r"(\d+)\.\d+", version_text)
            return Mpi(program=program, flavour=flavour, version=int(number[1]) if number else 0)
    return None


_PROGRAMS = ("mpirun", "mpiexec.hydra", "mpiexec")
_VERSION_LIMIT = 20.0
"""Timeout in seconds for `mpirun --version`, which loads libraries that may be on a slow file system."""


def find_mpi() -> Mpi:
    """The MPI launcher on PATH; `mpirun` if there are several."""
    program = next((name for name in _PROGRAMS if shutil.which(name)), None)
    if program is None:
        raise MusterError(
            "--engine mpi: `mpirun` not found on this machine",
            hint="load the module that provides it, or install it (Debian: apt-get install openmpi-bin)",
        )
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_VERSION_LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MusterError(
            f"--engine mpi: `{program} --version` failed ({error})", hint="check which MPI is first on PATH"
        ) from None
    mpi = identify(program, done.stdout)
    if mpi is None:
        first = done.stdout.strip().splitlines()[:1] or ["nothing"]
        raise MusterError(
            f"--engine mpi: `{program} --version` prints `{first[0]}`, which is not Open MPI, MPICH or Intel MPI",
            hint="put one of them first on PATH",
        )
    return mpi


def with_slots(hosts: Sequence[Host], nproc: int | None) -> tuple[Host, ...]:
    """The hosts with the number of ranks that is known before connecting; for this machine, also from its GPUs."""
    settled: list[Host] = []
    for host in hosts:
        known = host.slots is not None or nproc is not None or host.tasks is not None or is_this_machine(host)
        gpus = gpu_count(os.environ) if is_this_machine(host) else 0
        settled.append(fill_slots(host, nproc=nproc, gpus=gpus) if known else host)
    return tuple(settled)


def networks_to(hosts: Sequence[Host]) -> list[str]:
    """The networks (CIDR) over which this machine reaches the hosts; empty if a host is behind a router.

    mpirun's daemons try every address they have, and one that exists on each host (docker0) leads nowhere.
    """
    found: dict[str, None] = {}
    for host in hosts:
        if is_this_machine(host):
            continue
        try:
            address = socket.getaddrinfo(host.name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        except OSError:
            return []  # an alias from the ssh config, which only ssh can resolve
        network = _network_of(str(address))
        if network is None:
            return []
        found[network] = None
    return list(found)


def _network_of(address: str) -> str | None:
    """The directly connected network that contains an address, from the kernel's routing table."""
    target = int.from_bytes(socket.inet_aton(address), "little")
    best: tuple[int, str] | None = None
    try:
        with open("/proc/net/route") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return None
    for row in rows:
        destination, gateway, mask = int(row[1], 16), int(row[2], 16), int(row[7], 16)
        if mask and target & mask == destination and (best is None or bin(mask).count("1") > best[0]):
            bits = bin(mask).count("1")
            dotted = socket.inet_ntoa(destination.to_bytes(4, "little"))
            best = (bits, "" if gateway else str(ipaddress.ip_network(f"{dotted}/{bits}")))
    return best[1] or None if best else None
