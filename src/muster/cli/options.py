"""The options that say where and how to run, shared by every command that starts ranks, and what they mean."""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from muster.cli.arguments import Parser, port, positive
from muster.engines.choice import choose
from muster.engines.container.container import PROGRAMS
from muster.engines.engine import Choice, Engine, Launch, words
from muster.engines.table import NAMES, built_in
from muster.errors import UsageError
from muster.hosts import Host, parse_hosts, read_hostfile
from muster.job import Job, job_folder
from muster.spec import RunSpec


def add_where(p: Parser) -> None:
    """On which hosts, and how many ranks on each."""
    where = p.add_argument_group("where")
    where.add_argument("-H", "--hosts", metavar="HOSTS", help="name, user@name, name:8, name:0,2,5, gpu[01-04]:8")
    where.add_argument("--hostfile", metavar="FILE", help="read hosts from a file, one per line (`host slots=8`)")
    where.add_argument("--lab", metavar="N", type=positive, help="run on N virtual hosts that live as long as the job")
    where.add_argument(
        "--nproc",
        metavar="N",
        type=positive,
        help="ranks per host, where HOSTS does not say (default: its GPUs)",
    )
    where.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter on the hosts (default: this one's path, else python3)",
    )


def add_engine(p: Parser) -> None:
    """What places the processes, and in which container."""
    engine = p.add_argument_group("engine (what places the processes)")
    engine.add_argument(
        "--engine",
        metavar="NAME",
        choices=NAMES,
        default="auto",
        help="local, ssh, slurm, pbs, mpi, or auto: the job we are in, else ssh (default)",
    )
    for each in built_in():
        each.add_options(engine)
    engine.add_argument("--image", metavar="IMAGE", help="run inside this container image on every host")
    engine.add_argument(
        "--container",
        metavar="PROGRAM",
        choices=PROGRAMS,
        help="podman, docker or apptainer (default: what a host has)",
    )
    engine.add_argument(
        "--container-args", metavar="ARGS", type=words, default=(), help='more options for it: "-v /data:/data"'
    )
    p.taking_options |= {name for name, action in p._option_string_actions.items() if action.metavar == "ARGS"}


def add_network(p: Parser) -> None:
    """Where ranks meet."""
    network = p.add_argument_group("network (found by trying, if not given)")
    network.add_argument("--master-addr", metavar="ADDRESS", help="address of the first host, where ranks meet")
    network.add_argument("--master-port", metavar="PORT", type=port, help="port there (default: a free one)")
    network.add_argument("--interface", metavar="NAME", help="network interface for gloo and NCCL on every host")


def asking_for_allocation(options: argparse.Namespace) -> Engine | None:
    """The engine from which an option such as --slurm-args asks for a new allocation."""
    return next((engine for engine in built_in() if _asked(engine, options) is not None), None)


def _asked(engine: Engine, options: argparse.Namespace) -> str | None:
    dest = engine.allocation_option.lstrip("-").replace("-", "_")
    return getattr(options, dest) if dest else None


def allocate(engine: Engine, options: argparse.Namespace, command: str, argv: list[str], target: str) -> int:
    """Get the allocation that the options ask for, and run this very command line inside it."""
    if options.engine not in ("auto", engine.name):
        raise UsageError(
            f"{engine.allocation_option} are for --engine {engine.name}, not for {options.engine}",
            hint="leave one of them out",
        )
    detach = getattr(options, "detach", False)
    asked = _asked(engine, options) or ""
    return engine.allocate(asked, [command, *argv], target, dry_run=options.dry_run, detach=detach)


def spec_of(options: argparse.Namespace, command: list[str], hosts: tuple[Host, ...] | None = None) -> RunSpec:
    """What the options ask for; those that a command does not have keep the default of the spec."""
    given = vars(options)
    target, *args = command or [""]
    same = {field.name for field in fields(RunSpec)} & given.keys() - {"env", "hosts", "preload"}
    asked: dict[str, Any] = {name: given[name] for name in same}
    return RunSpec(target=target, args=tuple(args), hosts=hosts, **asked)


@dataclass(frozen=True, kw_only=True)
class Where:
    """The engine, its hosts, and how they are reached."""

    spec: RunSpec
    choice: Choice
    ssh: tuple[str, ...] = ("ssh",)

    def launch(self, job: Job) -> Launch:
        """What is started for a job here."""
        spec = replace(self.spec, sync=job.sync)
        folder = str(job_folder(job.id))
        return self.choice.engine.launch(self.choice, spec, job_id=job.id, cwd=job.cwd, folder=folder, ssh=self.ssh)


@contextmanager
def located(options: argparse.Namespace) -> Generator[Where]:
    """What the options choose; the hosts of --lab live as long as the block."""
    spec = spec_of(options, [], choose_hosts(options))
    if not options.lab or options.dry_run:
        yield Where(spec=spec, choice=choose(spec, os.environ))
        return
    from muster.lab import Lab

    with Lab(options.lab, bind=(os.getcwd(),)) as lab:
        spec = replace(spec, hosts=tuple(Host(name=name) for name in lab.names))
        yield Where(spec=spec, choice=choose(spec, os.environ), ssh=tuple(lab.ssh_argv()))


def choose_hosts(options: argparse.Namespace) -> tuple[Host, ...] | None:
    """The hosts of -H, --hostfile or --lab; None when none are given."""
    given = [name for name in ("hosts", "hostfile", "lab") if getattr(options, name)]
    if len(given) > 1:
        flags = " and ".join("-H" if name == "hosts" else f"--{name}" for name in given)
        raise UsageError(f"{flags} both say where to run", hint="give one of them")
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    if options.lab:
        return tuple(Host(name=f"h{number + 1}") for number in range(options.lab))
    return None
