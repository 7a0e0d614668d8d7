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
from functools import partial
from typing import Any, cast

from muster.api.arguments import Parser, natural, option, port, positive, seconds
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
_option = partial(option, default=argparse.SUPPRESS)

_SWITCHES = {
    "zygote": "start each rank as a fresh interpreter; slower, shares nothing",
    "watch": "install no hooks and no thread in the ranks; hangs and stragglers are then not detected",
    "check": "do not look at the hosts while the job starts (`muster check` looks closer)",
}
"""What `--no-NAME` leaves out."""


def add_where(p: Parser) -> None:
    """On which hosts, and how many ranks on each."""
    where = p.add_argument_group("where")
    option(where, "-H --hosts HOSTS", "name, user@name, name:8, name:0,2,5, gpu[01-04]:8")
    option(where, "--hostfile FILE", "read hosts from a file, one per line (`host slots=8`)")
    option(where, "--lab N", "run on N virtual hosts that live as long as the job", type=positive)
    _option(where, "--nproc N", "ranks per host, where HOSTS does not say (default: its GPUs)", type=positive)
    _option(where, "--python PATH", "the interpreter on the hosts (default: this one's path, else python3)")


def add_engine(p: Parser) -> None:
    """What places the processes, and in which container."""
    engine = p.add_argument_group("engine (what places the processes)")
    about = "local, ssh, slurm, pbs, mpi, or auto: the job we are in, else ssh (default)"
    _option(engine, "--engine NAME", about, choices=NAMES)
    for each in built_in():
        each.add_options(engine)
    _option(engine, "--image IMAGE", "run inside this container image on every host")
    _option(engine, "--container PROGRAM", "podman, docker or apptainer (default: what a host has)", choices=PROGRAMS)
    _option(engine, "--container-args ARGS", 'more options for it: "-v /data:/data"', type=words)
    p.taking_options |= {name for name, action in p._option_string_actions.items() if action.metavar == "ARGS"}


def add_network(p: Parser) -> None:
    """Where ranks meet."""
    network = p.add_argument_group("network (found by trying, if not given)")
    _option(network, "--master-addr ADDRESS", "address of the first host, where ranks meet")
    _option(network, "--master-port PORT", "port there (default: a free one)", type=port)
    _option(network, "--interface NAME", "network interface for gloo and NCCL on every host")


def add_what(p: Parser) -> None:
    """What runs, and how."""
    what = p.add_argument_group("what")
    option(what, "-m", "run a module, as `python -m` does", dest="module")
    option(what, "--env NAME[=VALUE]", "set a variable in every rank", action="append", default=[])
    _option(what, "--sync", "send this folder (what git would track) to each host and run there")
    option(what, "--preload MODULE", "import this once per host, besides torch", action="append", default=[])
    for name, about in _SWITCHES.items():
        _option(what, f"--no-{name}", about, dest=name, action="store_false")
    _option(what, "--restarts N", "after a failure start all ranks again, up to N times", type=natural)
    about = "time for ranks to end after Ctrl-C or SIGTERM, such as 30s or 2m (default: 5s)"
    _option(what, "--grace DURATION", about, type=seconds)
    about = "report a hang after this time without progress, such as 90s or 5m (default: 30s; 0: never)"
    _option(what, "--hang-after DURATION", about, type=seconds)
    about = "what to do then: report it and wait (default), or also end the job with exit code 124"
    _option(what, "--on-hang", about, choices=("report", "kill"))
    about = "go on in the background, also after logout: prints the job's id when its ranks have started"
    option(what, "--detach", about)


def add_screen(p: Parser) -> None:
    """What is shown of it."""
    screen = p.add_argument_group("screen")
    option(screen, "--dry-run", "print the plan and each command line, run nothing")
    add_quiet(screen)
    add_debug(screen)
    about = "show only these ranks (0 or 0,4-7); logs keep all"
    _option(screen, "--only-rank RANKS", about, dest="only_ranks", type=_ranks)
    _option(screen, "--dashboard", "serve a dashboard that shows the job in a browser, and print its address")
    _option(screen, "--dashboard-port PORT", "its port (default: a free one)", type=port)
    _option(screen, "--page", argparse.SUPPRESS, dest="dashboard")  # their former names
    _option(screen, "--page-port PORT", argparse.SUPPRESS, dest="dashboard_port", type=port)


def add_quiet(group: argparse._ArgumentGroup) -> None:
    """`--quiet`."""
    _option(group, "--quiet", "no words of Muster's own unless something fails")


def add_debug(group: argparse._ArgumentGroup) -> None:
    """`--debug`."""
    _option(group, "--debug", "show the debug log on stderr too")


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
    target, *args = command or [""]
    given: dict[str, Any] = {"target": target, "args": tuple(args), "cwd": os.getcwd()}
    given |= {"kind": "module" if options.module else "script"} | _typed(options) | fixed
    return RunSpec(**given)


def _typed(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a RunSpec that options were typed for."""
    given = {name: value for name, value in vars(options).items() if name in _FIELDS}
    given |= {
        "hosts": _hosts(options),
        "env": parse_env(options.env, os.environ),
        "preload": tuple(getattr(options, "preload", ())),
    }
    return {name: value for name, value in given.items() if value not in (None, {}, ())}


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
    values = {name: _value(name, value) for name, value in given.items() if value is not None}
    if "env" in values:
        values["env"] = {**spec.env, **values["env"]}
    return replace(spec, **values)


def _value(name: str, value: Any) -> Any:
    """A field's value, from how people write it."""
    if name == "hosts":
        listed: list[object] = [value] if isinstance(value, str) else list(value)
        return parse_hosts(",".join(map(str, listed)))
    if name == "env":
        return {variable: str(text) for variable, text in value.items()}
    if name in ("only_ranks", "only_local_ranks") and not isinstance(value, int):
        return frozenset(value)
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def parse_words(words: Sequence[str]) -> argparse.Namespace:
    """Options as they are typed after `muster run`; those that make no sense from Python are refused."""
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
    for name, (flag, hint) in refused.items():
        if getattr(options, name):
            raise UsageError(f"options: launch() has no use for {flag}", hint=hint)
    refuse(options)
    return options


def spec_as_typed(spec: RunSpec, options: argparse.Namespace) -> RunSpec:
    """A run with what was typed in place of what it had; variables are added to those it has."""
    typed = _typed(options)
    return replace(spec, **{**typed, "env": {**spec.env, **typed.get("env", {})}})
