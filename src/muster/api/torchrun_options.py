"""torchrun's options: Muster honors those that apply, and explains the others in one sentence."""

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
"""Modules that `python -m` runs as torchrun."""

_MEETING = "Muster finds the address and port where ranks meet"
_LOGS = "Muster keeps the output of every rank in the job's directory; `muster logs last` prints it"
_FILTERS = "Muster keeps every line in the log files; `muster logs last | grep WORD` filters them"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option of torchrun. Muster honors it unless `ignored` or `refused` is set."""

    names: tuple[str, ...]
    """With dashes; underscores are accepted as well."""
    dest: str
    """Its name in the parsed options; that of Muster's option where the two mean the same."""
    reads: Callable[[str], object] | None = None
    """Parses its value; None if it takes none."""
    ignored: str = ""
    """Why Muster does not need it."""
    refused: str = ""
    """Why Muster cannot run a job that needs it."""
    instead: str = ""
    """What to type instead of a refused option."""


def read_per_node(text: str) -> int | None:
    """Read the ranks per host: a number, `cpu` for the CPUs of this machine, `gpu` or `auto` for its GPUs (None)."""
    if text in ("auto", "gpu"):
        return None
    if text == "cpu":
        return len(os.sched_getaffinity(0))
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a number, gpu, cpu or auto, got `{text}`")
    return positive(text)


def read_ranks(text: str) -> frozenset[int]:
    """Read local ranks: `0` or `0,1,2`."""
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text):
        raise argparse.ArgumentTypeError(f"must be local ranks such as 0 or 0,1,2, got `{text}`")
    return frozenset(map(int, text.split(",")))


def read_nodes(text: str) -> tuple[int, int]:
    """Read the minimum and maximum number of hosts: `4` or `1:4`."""
    found = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"must be a number of hosts such as 4 or 1:4, got `{text}`")
    return int(found[1]), int(found[2] or found[1])


def _flag(names: str, reads: Callable[[str], object] | None = None, *, dest: str = "", **more: str) -> Flag:
    first, *others = names.split()
    return Flag(names=(first, *others), dest=dest or first.lstrip("-").replace("-", "_"), reads=reads, **more)


_IGNORED = {
    "--rdzv-backend": _MEETING,
    "--rdzv-endpoint": _MEETING,
    "--rdzv-id": _MEETING,
    "--rdzv-conf": _MEETING,
    "--local-addr": "Muster tests which addresses the hosts can reach; --interface NAME chooses a network",
    "--log-dir": _LOGS,
    "--logs-specs": _LOGS,
    "--redirects -r": _LOGS,
    "--tee -t": _LOGS,
    "--duplicate-stdout-filters": _FILTERS,
    "--duplicate-stderr-filters": _FILTERS,
    "--event-log-handler": "Muster records how each rank ended; `muster ps --json` prints it",
    "--monitor-interval": "Muster does not poll; it notices at once that a rank has ended",
    "--start-method": "Muster forks ranks from a process that has imported torch; "
    "--no-zygote starts fresh interpreters",
    "--signals-to-handle": "Muster stops the job on SIGINT, SIGTERM and SIGHUP, "
    "and passes SIGUSR1 and SIGUSR2 on to the ranks",
    "--numa-binding": "Muster does not bind ranks to CPUs or NUMA nodes",
}
"""Options with a value that Muster does not need, and why."""

FLAGS = (
    _flag("--nproc-per-node -nproc-per-node -np -n", read_per_node, dest="nproc"),
    _flag("--nnodes", read_nodes),
    _flag("--node-rank", natural),
    _flag("--standalone"),
    _flag("--max-restarts", natural, dest="restarts"),
    _flag("--module"),
    _flag("--role", str),
    _flag("--local-ranks-filter", read_ranks, dest="only_local_ranks"),
    _flag("--shutdown-timeout", seconds, dest="grace"),
    _flag("--use-env"),
    *(_flag(names, str, ignored=why) for names, why in _IGNORED.items()),
    _flag("--run-path", ignored="Muster already runs the script in an interpreter that has imported torch"),
    _flag(
        "--no-python",
        refused="Muster runs Python scripts and modules only",
        instead="start the program from a Python script, or leave the option out if it is a Python script",
    ),
    _flag(
        "--virtual-local-rank",
        refused="Muster gives each rank its LOCAL_RANK and shows it all GPUs of the host",
        instead='leave it out, and use `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` in the script',
    ),
)


PER_NODE = ("gpu", "cpu", "auto")
"""Values of --nproc-per-node that are not numbers."""


class NamespaceOrRanks(argparse.Action):
    """`-n`: the namespace of pods as of kubectl, or, if it is a number, the ranks per host as of torchrun."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, name: str | None = None
    ) -> None:
        """Set one of the two."""
        if name != "-n" or not str(values).isdigit():
            namespace.namespace = values
            return
        try:
            namespace.nproc = read_per_node(values)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def add_torchrun(p: Parser) -> None:
    """Accept torchrun's options, which --help does not list; those not given are absent from the parsed options."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for flag in FLAGS:
        kind = {"action": "store_true"} if flag.reads is None else {"type": flag.reads}
        names = [name for name in flag.names if name not in p._option_string_actions]  # -n of Muster means both
        p.add_argument(*names, dest=flag.dest, **kind, **hidden)


def refuse(options: argparse.Namespace) -> None:
    """Raise UsageError for an option of torchrun that would change what the ranks do and that Muster lacks."""
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
    """Return a sentence for each of torchrun's options that Muster ignores or handles differently; checks --nnodes."""
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
            f"--nnodes {text}: the job has {count(hosts, 'host')}", hint="list the hosts with -H host1,host2"
        )
    if least == most:
        return ()
    return (f"--nnodes {text}: Muster does not add or remove hosts while a job runs",)
