"""torchrun's options: those that mean something to Muster are honored, the others are explained in one sentence."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from muster.api.arguments import Parser, natural, positive, seconds
from muster.errors import UsageError
from muster.hosts import Host
from muster.text import count

MODULES = ("torch.distributed.run", "torch.distributed.launch")
"""What `python -m` runs as torchrun."""

LOCAL_RANK = "--local-rank=${local_rank}"
"""What torch.distributed.launch without --use-env passes to the script; each rank puts its number in."""

_MEETING = "Muster finds the address and port where ranks meet"
_LOGS = "Muster keeps the output of every rank in the job's directory; `muster logs last` prints it"
_FILTERS = "Muster keeps every line in the log files; `muster logs last | grep WORD` filters them"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option of torchrun. Muster honors it, unless one of the last three fields says something else."""

    names: tuple[str, ...]
    """With dashes; underscores do as well."""
    dest: str
    """Where its value goes in the options; that of an option of Muster, if it is the same by another name."""
    reads: Callable[[str], object] | None = None
    """What reads its value; None if it takes none."""
    ignored: str = ""
    """Why Muster does not need it."""
    refused: str = ""
    """Why a job that needs it cannot run."""
    instead: str = ""
    """What to type instead of a refused option."""


def read_per_node(text: str) -> int | None:
    """Ranks on each host: a number, `cpu` for the CPUs of this machine, `gpu` or `auto` for each host's GPUs (None)."""
    if text in ("auto", "gpu"):
        return None
    if text == "cpu":
        return len(os.sched_getaffinity(0))
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of ranks; type a number, gpu, cpu or auto")
    return positive(text)


def read_ranks(text: str) -> frozenset[int]:
    """Local ranks: `0` or `0,1,2`."""
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text):
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of local ranks, such as 0 or 0,1,2")
    return frozenset(map(int, text.split(",")))


def read_nodes(text: str) -> tuple[int, int]:
    """The least and the greatest number of hosts: `4` or `1:4`."""
    found = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of hosts, such as 4 or 1:4")
    return int(found[1]), int(found[2] or found[1])


FLAGS = (
    Flag(names=("--nproc-per-node", "-nproc-per-node", "-np", "-n"), dest="nproc", reads=read_per_node),
    Flag(names=("--nnodes",), dest="nnodes", reads=read_nodes),
    Flag(names=("--node-rank",), dest="node_rank", reads=natural),
    Flag(names=("--standalone",), dest="standalone"),
    Flag(names=("--max-restarts",), dest="restarts", reads=natural),
    Flag(names=("--module",), dest="module"),
    Flag(names=("--role",), dest="role", reads=str),
    Flag(names=("--local-ranks-filter",), dest="only_local_ranks", reads=read_ranks),
    Flag(names=("--shutdown-timeout",), dest="grace", reads=seconds),
    Flag(names=("--use-env",), dest="use_env"),
    Flag(names=("--rdzv-backend",), dest="rdzv_backend", reads=str, ignored=_MEETING),
    Flag(names=("--rdzv-endpoint",), dest="rdzv_endpoint", reads=str, ignored=_MEETING),
    Flag(names=("--rdzv-id",), dest="rdzv_id", reads=str, ignored=_MEETING),
    Flag(names=("--rdzv-conf",), dest="rdzv_conf", reads=str, ignored=_MEETING),
    Flag(
        names=("--local-addr",),
        dest="local_addr",
        reads=str,
        ignored="Muster tests which addresses the hosts can reach; --interface NAME chooses a network",
    ),
    Flag(names=("--log-dir",), dest="log_dir", reads=str, ignored=_LOGS),
    Flag(names=("--logs-specs",), dest="logs_specs", reads=str, ignored=_LOGS),
    Flag(names=("--redirects", "-r"), dest="redirects", reads=str, ignored=_LOGS),
    Flag(names=("--tee", "-t"), dest="tee", reads=str, ignored=_LOGS),
    Flag(names=("--duplicate-stdout-filters",), dest="stdout_filters", reads=str, ignored=_FILTERS),
    Flag(names=("--duplicate-stderr-filters",), dest="stderr_filters", reads=str, ignored=_FILTERS),
    Flag(
        names=("--event-log-handler",),
        dest="event_log_handler",
        reads=str,
        ignored="Muster records how each rank ended; `muster ps --json` prints it",
    ),
    Flag(
        names=("--monitor-interval",),
        dest="monitor_interval",
        reads=str,
        ignored="Muster does not poll; it notices at once that a rank has ended",
    ),
    Flag(
        names=("--start-method",),
        dest="start_method",
        reads=str,
        ignored="Muster forks ranks from a process that has imported torch; --no-zygote starts fresh interpreters",
    ),
    Flag(
        names=("--run-path",),
        dest="run_path",
        ignored="Muster already runs the script in an interpreter that has imported torch",
    ),
    Flag(
        names=("--signals-to-handle",),
        dest="signals_to_handle",
        reads=str,
        ignored="Muster stops the job on SIGINT, SIGTERM and SIGHUP, and passes SIGUSR1 and SIGUSR2 on to the ranks",
    ),
    Flag(
        names=("--numa-binding",),
        dest="numa_binding",
        reads=str,
        ignored="Muster does not bind ranks to CPUs or NUMA nodes",
    ),
    Flag(
        names=("--no-python",),
        dest="no_python",
        refused="Muster runs Python scripts and modules only",
        instead="start the program from a Python script, or leave the option out if it is one",
    ),
    Flag(
        names=("--virtual-local-rank",),
        dest="virtual_local_rank",
        refused="Muster gives each rank its LOCAL_RANK and shows it all GPUs of the host",
        instead='leave it out, and use `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` in the script',
    ),
)


def add_torchrun(p: Parser) -> None:
    """Accept torchrun's options, which --help does not list; those that are not given leave no trace."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for flag in FLAGS:
        kind = {"action": "store_true"} if flag.reads is None else {"type": flag.reads}
        p.add_argument(*flag.names, dest=flag.dest, **kind, **hidden)


def refuse(options: argparse.Namespace) -> None:
    """Raise UsageError for an option of torchrun that would change what the ranks do, and that Muster does not have."""
    for flag in FLAGS:
        if flag.refused and hasattr(options, flag.dest):
            raise UsageError(f"{flag.names[0]}: {flag.refused}", hint=flag.instead)
    rank = getattr(options, "node_rank", 0)
    if rank:
        raise UsageError(
            f"--node-rank {rank}: Muster starts the ranks of all hosts from one command",
            hint="run it once, on any host, with `-H host1,host2` instead of --nnodes and --node-rank",
        )


def explain(options: argparse.Namespace, hosts: Sequence[Host]) -> tuple[str, ...]:
    """A sentence for each thing that torchrun's options ask for and Muster does in another way; checks --nnodes."""
    by_reason: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.ignored and hasattr(options, flag.dest):
            by_reason.setdefault(flag.ignored, []).append(flag.names[0])
    return (
        *_nodes(getattr(options, "nnodes", None), len(hosts)),
        *(f"ignoring {', '.join(names)}: {reason}" for reason, names in by_reason.items()),
    )


def _nodes(wanted: tuple[int, int] | None, hosts: int) -> tuple[str, ...]:
    if wanted is None:
        return ()
    least, most = wanted
    text = str(least) if least == most else f"{least}:{most}"
    if not least <= hosts <= most:
        raise UsageError(
            f"--nnodes {text}: the job has {count(hosts, 'host')}", hint="name the hosts with -H host1,host2"
        )
    if least == most:
        return ()
    return (f"--nnodes {text}: Muster does not add or remove hosts while a job runs",)
