"""MPI: mpirun starts the ranks, each under an agent of its own, so that MPI itself works in them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from muster.agent import dial_back
from muster.engines.container.container import Container
from muster.engines.engine import AgentSpec, Dialed, StartCommand, or_container
from muster.errors import MusterError, UsageError
from muster.hosts import Host
from muster.plan import Plan, labels

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
    """Of Open MPI the first number, 4 or 5; else 0."""


def identify(program: str, version_text: str) -> Mpi | None:
    """Which MPI a launcher is, from what its `--version` prints; None for one we do not know."""
    for sign, flavour in _SIGNS:
        if sign in version_text:
            number = re.search(r"(\d+)\.\d+", version_text)
            return Mpi(program=program, flavour=flavour, version=int(number[1]) if number else 0)
    return None


def mpi_engine(
    mpi: Mpi,
    hosts: Sequence[Host],
    *,
    python: str | None,
    args: Sequence[str] = (),
    exported: Sequence[str] = (),
    networks: Sequence[str] = (),
    box: Container | None = None,
) -> Dialed:
    """One mpirun for all ranks; `exported` are names of variables Python may need to start on the other hosts.

    `networks` (CIDR) are those over which this machine reaches the hosts: mpirun's daemons use no other.
    """
    seats = _seats(hosts)
    agent = (python or (sys.executable if box is None else "python3"), "-c", dial_back.COMMAND)
    command = replace(box, shares_processes=True).run(agent) if box else agent
    if box and mpi.flavour == "mpich" and "-pmi-port" not in args:
        args = ("-pmi-port", *args)  # ranks talk to it over a port: an inherited descriptor gets into no container
    argv = (mpi.program, *_LAYOUTS[mpi.flavour](mpi, hosts, exported, networks, (*args, *command)))
    return Dialed(
        name="mpi",
        summons=(StartCommand(argv=argv, seats=tuple(seats)),),
        seat_from=("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID"),
        explain=or_container(box, explain_mpirun),
        is_final=lambda line: bool(_FINAL.search(line)),
        why_over=lambda summons, code: f"{summons.argv[0]} ended all ranks by itself, with code {code}",
        killed_at_once=True,
        rank_env=network_variables,
        scheduler="mpirun",
    )


def _seats(hosts: Sequence[Host]) -> list[AgentSpec]:
    seats: list[AgentSpec] = []
    for host, name in zip(hosts, labels(hosts), strict=True):
        if host.slots is None:
            raise UsageError(
                f"{host.name}: mpirun must know how many ranks run there before it is asked",
                hint=f"write `-H {host.name}:8`, or `--nproc 8`",
            )
        if host.user or host.port:
            raise UsageError(
                f"{host.name}: mpirun logs in by itself, and cannot be told a user or a port",
                hint="put them into ~/.ssh/config, where its ssh finds them",
            )
        for _ in range(host.slots):
            seats.append(AgentSpec(host=host, name=name, key=str(len(seats)), rank=len(seats)))
    return seats


def _openmpi(
    mpi: Mpi, hosts: Sequence[Host], exported: Sequence[str], networks: Sequence[str], rest: Sequence[str]
) -> list[str]:
    where = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    argv = ["-np", str(_total(hosts)), "-H", where, "--bind-to", "none", "--map-by", "slot"]
    if networks:
        # Version 5 has its daemons from PRRTE, where the setting has another name.
        setting = ("--mca", "oob_tcp_if_include") if mpi.version < 5 else ("--prtemca", "prte_if_include")
        argv += [*setting, ",".join(networks)]
    for name in ("MUSTER_DIAL", *exported):
        argv += ["-x", name]
    return [*argv, *rest]


def _mpich(
    mpi: Mpi, hosts: Sequence[Host], exported: Sequence[str], networks: Sequence[str], rest: Sequence[str]
) -> list[str]:
    where = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    return ["-np", str(_total(hosts)), "-hosts", where, *rest]  # it exports the whole environment by itself


def _intel(
    mpi: Mpi, hosts: Sequence[Host], exported: Sequence[str], networks: Sequence[str], rest: Sequence[str]
) -> list[str]:
    # Its -hosts knows no unequal hosts; one block for each host does. -genvlist keeps values off the command line.
    argv = ["-genvlist", ",".join(("MUSTER_DIAL", *exported))]
    for number, host in enumerate(hosts):
        argv += [*([":"] if number else []), "-host", host.name, "-n", str(host.slots), *rest]
    return argv


_LAYOUTS = {"openmpi": _openmpi, "mpich": _mpich, "intel": _intel}


def _total(hosts: Sequence[Host]) -> int:
    return sum(host.slots or 0 for host in hosts)


def network_variables(plan: Plan, rank: int) -> dict[str, str]:
    """MPI's own traffic over the interface by which the hosts found each other."""
    interface = plan.placement_of(rank).env.get("GLOO_SOCKET_IFNAME")
    if interface is None:
        return {}
    return {"OMPI_MCA_btl_tcp_if_include": interface, "MPIR_CVAR_NETWORK_IFACE": interface, "FI_TCP_IFACE": interface}


def explain_mpirun(summons: StartCommand, code: int | None, text: str) -> MusterError:
    """What mpirun's words mean when its agents have not come."""
    ours = next((line for line in text.splitlines() if line.startswith("muster: ")), None)
    if ours is not None:
        return MusterError(ours.removeprefix("muster: "), hint="is there a firewall between them?")
    for sign, message, hint in _FAILURES:
        found = sign.search(text)
        if found:
            return MusterError(message.format(*found.groups()), hint=hint.format(*found.groups()))
    words = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    said = words[0] if words else f"it ended with code {code}"
    return MusterError(f"{summons.argv[0]} did not start the ranks: {said}", hint=f"try `{summons.argv[0]} -np 1 true`")


# hydra goes on waiting for a host after ssh has given it up.
_FINAL = re.compile(r"^muster: |^ssh: |: Permission denied \(|Host key verification failed")

_FAILURES = (
    (
        re.compile(r"attempt to run as root"),
        "mpirun refuses to run as root",
        "be another user, or write `--mpi-args=--allow-run-as-root` if you mean it",
    ),
    (
        re.compile(r": Permission denied \(|Host key verification failed"),
        "mpirun cannot log in to a host by ssh without a question",
        "does `ssh HOST true` work from here for each of them?",
    ),
    (
        re.compile(r"Could not resolve hostname (\S+?):"),
        "{0}: ssh does not know this name",
        "check the spelling, or add a `Host` entry to ~/.ssh/config",
    ),
    (
        re.compile(r"ssh: connect to host (\S+) port \d+: ([^\r\n]+)"),
        "{0}: ssh does not get there ({1})",
        "is it up? does `ssh {0} true` work from here?",
    ),
    (
        re.compile(r"not enough slots available"),
        "mpirun has not enough slots for the ranks",
        "write how many each host takes: `-H a:2,b:2`",
    ),
    (
        re.compile(r"unable to launch the specified application.*?Executable: (\S+)\s+Node: (\S+)", re.DOTALL),
        "{1}: mpirun cannot start {0} there",
        "name another Python with `--python PATH`",
    ),
    (
        re.compile(r"@([^\]\s]+)\] HYDU_create_process \S+ execvp error on file (\S+) \(([^)]+)\)"),
        "{0}: mpirun cannot start {1} there ({2})",
        "name another Python with `--python PATH`",
    ),
    (
        re.compile(r"(?:unable to reliably start one or more daemons|ORTE was unable)"),
        "mpirun cannot start its daemon on a host",
        "is the same MPI installed there, at the same place? does `ssh HOST true` work?",
    ),
)
