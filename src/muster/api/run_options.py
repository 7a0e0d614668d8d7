"""The options of a run as people type them, and the RunSpec they describe.

Every command that starts ranks has them, and so has `muster.launch(options=...)`. An option that is not given leaves no
trace in the parsed options: its default is RunSpec's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, cast

from muster.api.arguments import Parser, natural, port, positive, seconds
from muster.api.torchrun_options import add_torchrun, refuse
from muster.engines.container.container import PROGRAMS
from muster.engines.engine import Engine, words
from muster.engines.table import NAMES, built_in
from muster.environment import parse_env
from muster.errors import UsageError
from muster.hosts import Host, parse_hosts, read_hostfile
from muster.spec import RunSpec

_MOST_RANKS = 1_000_000
_FIELDS = frozenset(field.name for field in fields(RunSpec))
_UNSET: Any = argparse.SUPPRESS


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
        default=_UNSET,
        help="ranks per host, where HOSTS does not say (default: its GPUs)",
    )
    where.add_argument(
        "--python",
        metavar="PATH",
        default=_UNSET,
        help="the interpreter on the hosts (default: this one's path, else python3)",
    )


def add_engine(p: Parser) -> None:
    """What places the processes, and in which container."""
    engine = p.add_argument_group("engine (what places the processes)")
    engine.add_argument(
        "--engine",
        metavar="NAME",
        choices=NAMES,
        default=_UNSET,
        help="local, ssh, slurm, pbs, mpi, or auto: the job we are in, else ssh (default)",
    )
    for each in built_in():
        each.add_options(engine)
    engine.add_argument(
        "--image", metavar="IMAGE", default=_UNSET, help="run inside this container image on every host"
    )
    engine.add_argument(
        "--container",
        metavar="PROGRAM",
        choices=PROGRAMS,
        default=_UNSET,
        help="podman, docker or apptainer (default: what a host has)",
    )
    engine.add_argument(
        "--container-args", metavar="ARGS", type=words, default=_UNSET, help='more options for it: "-v /data:/data"'
    )
    p.taking_options |= {name for name, action in p._option_string_actions.items() if action.metavar == "ARGS"}


def add_network(p: Parser) -> None:
    """Where ranks meet."""
    network = p.add_argument_group("network (found by trying, if not given)")
    network.add_argument(
        "--master-addr", metavar="ADDRESS", default=_UNSET, help="address of the first host, where ranks meet"
    )
    network.add_argument(
        "--master-port", metavar="PORT", type=port, default=_UNSET, help="port there (default: a free one)"
    )
    network.add_argument(
        "--interface", metavar="NAME", default=_UNSET, help="network interface for gloo and NCCL on every host"
    )


def add_what(p: Parser) -> None:
    """What runs, and how."""
    what = p.add_argument_group("what")
    what.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    what.add_argument("--env", metavar="NAME[=VALUE]", action="append", default=[], help="set a variable in every rank")
    what.add_argument(
        "--sync",
        action="store_true",
        default=_UNSET,
        help="send this folder (what git would track) to each host and run there",
    )
    what.add_argument(
        "--preload", metavar="MODULE", action="append", default=[], help="import this once per host, besides torch"
    )
    what.add_argument(
        "--no-zygote",
        dest="zygote",
        action="store_false",
        default=_UNSET,
        help="start each rank as a fresh interpreter; slower, shares nothing",
    )
    what.add_argument(
        "--no-watch",
        dest="watch",
        action="store_false",
        default=_UNSET,
        help="install no hooks and no thread in the ranks; hangs and stragglers are then not detected",
    )
    what.add_argument(
        "--no-check",
        dest="check",
        action="store_false",
        default=_UNSET,
        help="do not look at the hosts while the job starts (`muster check` looks closer)",
    )
    _add_failures(what)
    what.add_argument(
        "--detach",
        action="store_true",
        help="go on in the background, also after logout: prints the job's id when its ranks have started",
    )


def _add_failures(what: argparse._ArgumentGroup) -> None:
    """What happens when a rank fails, hangs or is stopped."""
    what.add_argument(
        "--restarts",
        metavar="N",
        type=natural,
        default=_UNSET,
        help="after a failure start all ranks again, up to N times",
    )
    what.add_argument(
        "--grace",
        metavar="DURATION",
        type=seconds,
        default=_UNSET,
        help="time for ranks to end after Ctrl-C or SIGTERM, such as 30s or 2m (default: 5s)",
    )
    what.add_argument(
        "--hang-after",
        metavar="DURATION",
        type=seconds,
        default=_UNSET,
        help="report a hang after this time without progress, such as 90s or 5m (default: 30s; 0: never)",
    )
    what.add_argument(
        "--on-hang",
        choices=("report", "kill"),
        default=_UNSET,
        help="what to do then: report it and wait (default), or also end the job with exit code 124",
    )


def add_screen(p: Parser) -> None:
    """What is shown of it."""
    screen = p.add_argument_group("screen")
    screen.add_argument("--dry-run", action="store_true", help="print the plan and each command line, run nothing")
    add_quiet(screen)
    add_debug(screen)
    screen.add_argument(
        "--only-rank",
        dest="only_ranks",
        metavar="RANKS",
        type=_ranks,
        default=_UNSET,
        help="show only these ranks (0 or 0,4-7); logs keep all",
    )
    screen.add_argument(
        "--page",
        dest="dashboard",
        action="store_true",
        default=_UNSET,
        help="serve a page that shows the job in a browser, and say where",
    )
    screen.add_argument(
        "--page-port",
        dest="dashboard_port",
        metavar="PORT",
        type=port,
        default=_UNSET,
        help="its port (default: a free one)",
    )


def add_quiet(group: argparse._ArgumentGroup) -> None:
    """`--quiet`."""
    group.add_argument(
        "--quiet", action="store_true", default=_UNSET, help="no words of Muster's own unless something fails"
    )


def add_debug(group: argparse._ArgumentGroup) -> None:
    """`--debug`."""
    group.add_argument("--debug", action="store_true", default=_UNSET, help="show the debug log on stderr too")


def run_parser(**settings: Any) -> Parser:
    """A parser with all options of `muster run`, and what follows them as `command`."""
    p = Parser(prog="muster run", **settings)
    add_where(p)
    add_engine(p)
    add_what(p)
    add_network(p)
    add_screen(p)
    add_torchrun(p)
    p.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return p


def spec_of(options: argparse.Namespace, command: Sequence[str], **fixed: Any) -> RunSpec:
    """The run that parsed options and a script with its arguments describe; `fixed` fields win."""
    given = {name: value for name, value in vars(options).items() if name in _FIELDS}
    target, *args = command or [""]
    given |= {
        "target": target,
        "args": tuple(args),
        "kind": "module" if options.module else "script",
        "cwd": os.getcwd(),
        "hosts": _hosts(options),
        "env": parse_env(options.env, os.environ),
        "preload": tuple(getattr(options, "preload", ())),
    }
    return RunSpec(**{**given, **fixed})


def _hosts(options: argparse.Namespace) -> tuple[Host, ...] | None:
    """The hosts of -H or --hostfile; None when none are given."""
    given = [name for name in ("hosts", "hostfile", "lab") if getattr(options, name)]
    if len(given) > 1:
        flags = " and ".join("-H" if name == "hosts" else f"--{name}" for name in given)
        raise UsageError(f"{flags} both say where to run", hint="give one of them")
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    return None


def _ranks(text: str) -> frozenset[int]:
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise argparse.ArgumentTypeError(f"`{part}` is not a rank or a range of ranks, such as 0,4-7")
        if int(last or first) > _MOST_RANKS:
            raise argparse.ArgumentTypeError(f"`{part}`: there are no ranks above {_MOST_RANKS}")
        ranks |= set(range(int(first), int(last or first) + 1))
    return frozenset(ranks)


def asking_for_allocation(options: argparse.Namespace) -> Engine | None:
    """The engine from which an option such as --slurm-args asks for a new allocation."""
    return next((engine for engine in built_in() if _asked(engine, options) is not None), None)


def allocate(engine: Engine, options: argparse.Namespace, spec: RunSpec, argv: Sequence[str], target: str) -> int:
    """Get the allocation that the options ask for, and run `muster ARGV` inside it; returns its exit code."""
    if spec.engine not in ("auto", engine.name):
        raise UsageError(
            f"{engine.allocation_option} are for --engine {engine.name}, not for {spec.engine}",
            hint="leave one of them out",
        )
    dry_run, detach = getattr(options, "dry_run", False), getattr(options, "detach", False)
    return engine.allocate(_asked(engine, options) or "", argv, target, dry_run=dry_run, detach=detach)


def _asked(engine: Engine, options: argparse.Namespace) -> str | None:
    dest = engine.allocation_option.lstrip("-").replace("-", "_")
    return getattr(options, dest) if dest else None


def spec_with(spec: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """A run with fields named as in Python: `hosts` may be a text or a list of texts, values of `env` anything."""
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        near = get_close_matches(unknown[0], _FIELDS, 1)
        hint = f"did you mean {near[0]}?" if near else "the fields of muster.RunSpec are the options"
        raise UsageError(f"{unknown[0]} is not an option of a run", hint=hint)
    values = dict(given)
    for name, value in given.items():
        if isinstance(value, list):
            values[name] = tuple(cast("list[object]", value))
    if given.get("hosts") is not None:
        values["hosts"] = _parsed(given["hosts"])
    if given.get("env") is not None:
        values["env"] = {name: str(value) for name, value in given["env"].items()}
    return replace(spec, **values)


def _parsed(hosts: str | Sequence[str | Host]) -> tuple[Host, ...]:
    listed = [hosts] if isinstance(hosts, str) else hosts
    return tuple(host for one in listed for host in ((one,) if isinstance(one, Host) else parse_hosts(one)))


def spec_from_words(spec: RunSpec, words: Sequence[str]) -> RunSpec:
    """A run with options as they are typed after `muster run`; those that make no sense from Python are refused."""
    options = run_parser().parse_args(words)
    if options.command:
        raise UsageError(f"options: `{options.command[0]}` is not an option of `muster run`", hint="leave it out")
    refused = {
        "module": ("-m", "name a function of the module instead"),
        "detach": ("--detach", "call launch() in a thread to go on meanwhile"),
        "dry_run": ("--dry-run", "`muster run --dry-run` prints a plan"),
    }
    engine = asking_for_allocation(options)
    if engine is not None:
        hint = "run this program inside the allocation; launch() then uses its hosts"
        raise UsageError(f"options: launch() has no use for {engine.allocation_option}", hint=hint)
    for name, (option, hint) in refused.items():
        if getattr(options, name):
            raise UsageError(f"options: launch() has no use for {option}", hint=hint)
    refuse(options)
    kept = {"target", "args", "kind", "call", "cwd"}
    typed = spec_of(options, ())
    return replace(typed, **{name: getattr(spec, name) for name in kept})
