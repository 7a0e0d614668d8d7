"""The MPI engine: mpirun starts the ranks, each under its own agent, so that MPI itself works in them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.engines import table
from muster.engines.container.container import Container, container_of
from muster.engines.engine import (
    DIALING_AGENT,
    AgentSpec,
    Choice,
    Engine,
    Launch,
    StartCommand,
    container_failure,
    in_allocation,
    in_container,
    this_host,
    words,
)
from muster.engines.mpi.local_mpi import Mpi, find_mpi, networks_to, with_slots
from muster.errors import HostError, MusterError, UsageError
from muster.hosts import Host
from muster.plan import Plan, labels
from muster.spec import RunSpec
from muster.text import cut

if TYPE_CHECKING:
    import argparse


class MpiEngine(Engine):
    """mpirun of Open MPI, MPICH or Intel MPI, on the hosts of the surrounding job or on the user's hosts."""

    name = "mpi"
    # mpirun starts each rank itself and only once, so ranks cannot be forked from a zygote or restarted.
    no_zygote = "--preload needs the zygote, which --engine mpi does not use"
    no_spares = "--engine mpi cannot replace a lost host: mpirun ends all ranks when it loses one"
    no_restarts = "--restarts does not work with --engine mpi: mpirun cannot restart its ranks"
    key_from = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID")
    signals_from = "mpirun"
    killed_at_once = True

    def choose(self, spec: RunSpec, env: Mapping[str, str]) -> Choice:
        """The hosts of the surrounding job, unless the user gives others; otherwise this machine."""
        found = table.detect(env)
        if found is None:
            return Choice(engine=self, hosts=spec.hosts or (this_host(),))
        allocation = found[1]
        if spec.hosts is not None and not allocation.has_all(spec.hosts):
            said = f"detected: {allocation}; -H names hosts outside it, so Muster uses mpi"
            return Choice(engine=self, hosts=spec.hosts, said=(said,))
        return in_allocation(self, spec, allocation)

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """One mpirun for all ranks."""
        box = container_of(spec, folder)
        command = mpirun_command(
            find_mpi(),
            with_slots(choice.hosts, spec.nproc),
            python=spec.python_on_all(choice.hosts),
            args=spec.mpi_args,
            exported=[name for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ and box is None],
            networks=networks_to(choice.hosts),
            box=box,
        )
        return Launch(engine=self, commands=(command,), channel="dial-back")

    def rank_env(self, plan: Plan, rank: int) -> Mapping[str, str]:
        """Variables that make MPI use the network interface over which the hosts reached each other."""
        interface = plan.placement_of(rank).env.get("GLOO_SOCKET_IFNAME")
        names = ("OMPI_MCA_btl_tcp_if_include", "MPIR_CVAR_NETWORK_IFACE", "FI_TCP_IFACE")
        return {} if interface is None else dict.fromkeys(names, interface)

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Explain the output of an mpirun that did not start its agents."""
        failure = container_failure(command, text)
        if failure is not None:
            return failure
        killed = _KILLED.search(text)
        if killed is not None:
            hint = f"`dmesg` on {killed[2]} shows whether the OOM killer ended it"
            return HostError(killed[2], f"its agent was killed by signal {killed[3]} while it started", hint=hint)
        ours = next((line for line in text.splitlines() if line.startswith("muster: ")), None)
        if ours is not None:
            return MusterError(ours.removeprefix("muster: "), hint="check for a firewall between the hosts")
        for sign, message, hint in _FAILURES:
            found = sign.search(text)
            if found:
                return MusterError(message.format(*found.groups()), hint=hint.format(*found.groups()))
        mpirun = command.argv[0]
        said = _first_sentence(text) or f"exit code {code}"
        return MusterError(
            f"{mpirun} did not start the ranks: {said}",
            hint=f"check --mpi-args if given, and try `{mpirun} -np 1 true`",
        )

    def is_final(self, line: str) -> bool:
        """Whether ssh has failed for a host, for which hydra would keep waiting."""
        return bool(_FINAL.search(line))

    def killed_agent(self, line: str) -> tuple[str, int] | None:
        """The key of a killed agent and the signal: the process between it and mpirun says so."""
        found = _KILLED.match(line)
        return (found[1], int(found[3])) if found else None

    def why_over(self, command: StartCommand, code: int | None) -> str | None:
        """mpirun ends all ranks when it exits."""
        return f"{command.argv[0]} exited with code {code} and ended all ranks"

    def add_options(self, group: argparse._ArgumentGroup) -> None:
        """`--mpi-args`."""
        group.add_argument(
            "--mpi-args", metavar="ARGS", type=words, default=(), help='additional mpirun options: "--mca btl ^openib"'
        )


def mpirun_command(
    mpi: Mpi,
    hosts: Sequence[Host],
    *,
    python: str | None,
    args: Sequence[str] = (),
    exported: Sequence[str] = (),
    networks: Sequence[str] = (),
    box: Container | None = None,
) -> StartCommand:
    """One mpirun for all ranks; `exported` names variables that Python may need to start on the other hosts.

    `networks` (CIDR) are those over which this machine reaches the hosts; mpirun's daemons use only these.
    """
    agent = (python or (sys.executable if box is None else "python3"), "-c", DIALING_AGENT)
    if box and mpi.flavour == "mpich" and "-pmi-port" not in args:
        args = ("-pmi-port", *args)  # over a port, because an inherited descriptor does not reach into a container
    rest = (*args, *in_container(agent, box, shares_processes=True))
    argv = (mpi.program, *_arguments(mpi, hosts, exported, networks, rest))
    return StartCommand(argv=argv, agents=_one_per_rank(hosts), box=box)


def _one_per_rank(hosts: Sequence[Host]) -> tuple[AgentSpec, ...]:
    agents: list[AgentSpec] = []
    for host, name in zip(hosts, labels(hosts), strict=True):
        if host.slots is None:
            raise UsageError(
                f"with --engine mpi, give the number of ranks per host: -H {host.name}:N",
                hint=f"for example `-H {host.name}:8`, or `--nproc 8` for all hosts",
            )
        if host.user or host.port:
            raise UsageError(
                f"{host.name}: mpirun does not accept a user or a port for a host",
                hint="set them in ~/.ssh/config, which its ssh reads",
            )
        for _ in range(host.slots):
            agents.append(AgentSpec(host=host, name=name, key=str(len(agents)), rank=len(agents)))
    return tuple(agents)


def _arguments(
    mpi: Mpi, hosts: Sequence[Host], exported: Sequence[str], networks: Sequence[str], rest: Sequence[str]
) -> list[str]:
    """The mpirun options for hosts, ranks and exported variables, followed by `rest`, the command of each rank."""
    if mpi.flavour == "intel":
        # Its -hosts requires equal hosts, so there is one block per host. -genvlist keeps values off the command line.
        argv = ["-genvlist", ",".join(("MUSTER_DIAL", *exported))]
        for number, host in enumerate(hosts):
            argv += [*([":"] if number else []), "-host", host.name, "-n", str(host.slots), *rest]
        return argv
    total = str(sum(host.slots or 0 for host in hosts))
    where = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    if mpi.flavour == "mpich":
        return ["-np", total, "-hosts", where, *rest]  # MPICH exports the whole environment
    argv = ["-np", total, "-H", where, "--bind-to", "none", "--map-by", "slot"]
    if networks:
        # Version 5 uses PRRTE's daemons, where the setting has another name.
        setting = ("--mca", "oob_tcp_if_include") if mpi.version < 5 else ("--prtemca", "prte_if_include")
        argv += [*setting, ",".join(networks)]
    for name in ("MUSTER_DIAL", *exported):
        argv += ["-x", name]
    return [*argv, *rest]


_KILLED = re.compile(r"^muster: the agent of rank (\d+) on (\S+) was killed by signal (\d+)", re.MULTILINE)

_FINAL = re.compile(r"^muster: |^ssh: |: Permission denied \(|Host key verification failed")


def _first_sentence(text: str) -> str:
    """The first paragraph of Open MPI's box, whose lines are wrapped, with the next one if it ends with a colon."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n|^\W+$", text, flags=re.MULTILINE)]
    first, second, *_ = [*(part for part in paragraphs if re.search(r"\w", part)), "", ""]
    return cut(f"{first} {second}" if first.endswith(":") else first, 400)


_FAILURES = (
    (
        re.compile(r"attempt to run as root"),
        "mpirun refuses to run as root",
        "run as another user, or add `--mpi-args=--allow-run-as-root`",
    ),
    (
        re.compile(r": Permission denied \(|Host key verification failed"),
        "mpirun could not log in to a host by ssh",
        "check that `ssh HOST true` works from here without a prompt, for each host",
    ),
    (
        re.compile(r"Could not resolve hostname (\S+?):"),
        "{0}: ssh could not resolve this host name",
        "check the spelling, or add a `Host` entry to ~/.ssh/config",
    ),
    (
        re.compile(r"ssh: connect to host (\S+) port \d+: ([^\r\n]+)"),
        "{0}: ssh could not connect ({1})",
        "check that the host is up and that `ssh {0} true` works from here",
    ),
    (
        re.compile(r"not enough slots available"),
        "mpirun does not have enough slots for the ranks",
        "give the number of ranks per host: `-H a:2,b:2`",
    ),
    (
        re.compile(r"unable to launch the specified application.*?Executable: (\S+)\s+Node: (\S+)", re.DOTALL),
        "{1}: mpirun could not start {0}",
        "choose another Python with `--python PATH`",
    ),
    (
        re.compile(r"@([^\]\s]+)\] HYDU_create_process \S+ execvp error on file (\S+) \(([^)]+)\)"),
        "{0}: mpirun could not start {1} ({2})",
        "choose another Python with `--python PATH`",
    ),
    (
        re.compile(r"(?:unable to reliably start one or more daemons|ORTE was unable)"),
        "mpirun could not start its daemon on a host",
        "check that the same MPI is installed there at the same path, and that `ssh HOST true` works",
    ),
)
