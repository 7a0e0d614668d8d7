"""The options that say where and how to run, shared by every command that starts ranks, and what they mean."""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from muster.cli.arguments import Parser, port, positive, words
from muster.engines.build import Means
from muster.engines.choice import NAMES, Choice, Wish, choose
from muster.engines.container.container import PROGRAMS, Container
from muster.engines.pbs.programs import read_pbs_here
from muster.errors import UsageError
from muster.hosts import Host, parse_hosts, read_hostfile
from muster.job import Job, job_folder


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
    p.taking_options |= {"--slurm-args", "--mpi-args", "--container-args"}
    engine = p.add_argument_group("engine (what places the processes)")
    engine.add_argument(
        "--engine",
        metavar="NAME",
        choices=NAMES,
        default="auto",
        help="local, ssh, slurm, pbs, mpi, or auto: the job we are in, else ssh (default)",
    )
    engine.add_argument(
        "--slurm-args",
        metavar="ARGS",
        help='get a Slurm allocation with these options of salloc: "-N4 --gpus-per-node=2 -p gpu"',
    )
    engine.add_argument(
        "--pbs-start",
        metavar="HOW",
        choices=("tm", "ssh"),
        default="tm",
        help="inside a PBS job: agents as tasks of PBS (tm, the default), or by ssh and pbs_attach",
    )
    engine.add_argument(
        "--mpi-args", metavar="ARGS", type=words, default=(), help='more options for mpirun: "--mca btl ^openib"'
    )
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


def add_network(p: Parser) -> None:
    """Where ranks meet."""
    network = p.add_argument_group("network (found by trying, if not given)")
    network.add_argument("--master-addr", metavar="ADDRESS", help="address of the first host, where ranks meet")
    network.add_argument("--master-port", metavar="PORT", type=port, help="port there (default: a free one)")
    network.add_argument("--interface", metavar="NAME", help="network interface for gloo and NCCL on every host")


def add_debug(group: argparse._ArgumentGroup) -> None:
    """Whether the debug log is shown too."""
    group.add_argument("--debug", action="store_true", help="show the debug log on stderr too")


def allocate(options: argparse.Namespace, command: str, argv: list[str], target: str) -> int:
    """For --slurm-args: become salloc, which runs this very command line inside the allocation it gets."""
    from muster.engines.slurm.salloc import salloc

    if options.engine not in ("auto", "slurm"):
        raise UsageError(f"--slurm-args are for --engine slurm, not for {options.engine}", hint="leave one of them out")
    return salloc(options.slurm_args, [command, *argv], target, dry_run=options.dry_run)


@dataclass(frozen=True, kw_only=True)
class Places:
    """The engine, its hosts, and how they are reached."""

    choice: Choice
    ssh: tuple[str, ...] = ("ssh",)


@contextmanager
def places(options: argparse.Namespace) -> Generator[Places]:
    """What the options choose; the hosts of --lab live as long as the block."""
    hosts = choose_hosts(options)
    if not options.lab or options.dry_run:
        yield Places(choice=_choice(options, hosts))
        return
    from muster.lab import Lab

    with Lab(options.lab, bind=(os.getcwd(),)) as lab:
        hosts = tuple(Host(name=name) for name in lab.names)
        yield Places(choice=_choice(options, hosts), ssh=tuple(lab.ssh_argv()))


def _choice(options: argparse.Namespace, hosts: tuple[Host, ...] | None) -> Choice:
    wish = Wish(engine=options.engine, hosts=hosts, nproc=options.nproc, virtual=bool(options.lab))
    return choose(wish, os.environ, read_pbs=read_pbs_here)


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


def make_means(options: argparse.Namespace, job: Job, where: Places) -> Means:
    """How the agents are started."""
    box = None
    if options.image is not None:
        box = Container(
            image=options.image,
            program=options.container or "",
            args=options.container_args,
            cwd="" if job.sync else job.cwd,
            folder=str(job_folder(job.id)),
        )
    elif options.container or options.container_args:
        flag = "--container" if options.container else "--container-args"
        raise UsageError(f"{flag} says how to run an image, and none is named", hint="write `--image IMAGE`")
    return Means(
        python=options.python,
        box=box,
        ssh=where.ssh,
        only_ssh=bool(options.lab),
        nproc=options.nproc,
        pbs_start=options.pbs_start,
        mpi_args=options.mpi_args,
    )
