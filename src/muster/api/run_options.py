"""The options of a run as typed on the command line, and the RunSpec they describe.

Every command that starts ranks has them, and so has `muster.launch(options=...)`. An option that is not given is absent
from the parsed options: its default is RunSpec's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from muster.api.arguments import Parser, flag, natural, option, port, positive, rank_set, rejoin, seconds, silence
from muster.api.torchrun_options import PER_NODE, NamespaceOrRanks, add_torchrun, read_per_node, refuse
from muster.config import host_groups, host_pythons, read_configuration
from muster.engines.container.container import PROGRAMS
from muster.engines.engine import Engine, words
from muster.engines.table import NAMES, built_in
from muster.environment import parse_env
from muster.errors import UsageError
from muster.hosts import Host, parse_hosts, read_hostfile
from muster.spec import RunSpec

if TYPE_CHECKING:
    from muster.api.env_file import EnvFile
    from muster.config.configuration import Configuration

_FIELDS = frozenset(field.name for field in fields(RunSpec))
_option = partial(option, default=argparse.SUPPRESS)
_flag = partial(flag, default=argparse.SUPPRESS)

_SWITCHES = {
    "zygote": "start each rank as a fresh Python process instead of a fork; slower, nothing is shared",
    "watch": "install no hooks and no thread in the ranks; disables hang and straggler detection",
    "check": "skip the quick check of the hosts at the start (`muster check` checks more)",
}
"""Help of each `--no-NAME`."""


def add_where(p: Parser) -> None:
    """Add the options for hosts and ranks per host."""
    where = p.add_argument_group("hosts")
    about = "hosts to run on: name, user@name, name:8, name:0,2,5, gpu[01-04]:8, pod/name, @group"
    option(where, "-H --hosts HOSTS", about)
    option(where, "--hostfile FILE", "read hosts from FILE, one per line (`host slots=8`)")
    option(where, "--lab N", "run on N virtual hosts on this machine, h1 to hN, created for this job", type=positive)
    _option(where, "--pods SELECTOR", "run in the pods of Kubernetes with these labels, such as app=train")
    about = "namespace of the pods (default: that of kubectl's current context)"
    _option(where, "-n --namespace NAME", about, action=NamespaceOrRanks)
    _option(where, "-c --pod-container NAME", "container of the pods (default: the one that kubectl chooses)")
    _option(where, "--nproc N", "ranks per host unless HOSTS gives a number (default: one per GPU)", type=positive)
    _option(
        where, "--python PATH", "Python on the hosts (default: the same path as here, else python3; in pods python3)"
    )


def add_engine(p: Parser) -> None:
    """Add the options for the engine and the container."""
    engine = p.add_argument_group("engine (starts the processes)")
    about = (
        "local, ssh, slurm, pbs, mpi, kubernetes, or auto (default): the scheduler of the current job, kubernetes for "
        "pods, else ssh or local"
    )
    _option(engine, "--engine NAME", about, choices=NAMES)
    for each in built_in():
        each.add_options(engine)
    _option(engine, "--image IMAGE", "run inside this container image on every host")
    about = "podman, docker or apptainer (default: the first one a host has)"
    _option(engine, "--container PROGRAM", about, choices=PROGRAMS)
    _option(engine, "--container-args ARGS", 'more options for the container program: "-v /data:/data"', type=words)
    p.taking_options |= {name for name, action in p._option_string_actions.items() if action.metavar == "ARGS"}


def add_network(p: Parser) -> None:
    """Add the options for the network."""
    network = p.add_argument_group("network (default: discovered by testing which addresses the hosts can reach)")
    _option(network, "--master-addr ADDRESS", "MASTER_ADDR: an address of the first host")
    _option(network, "--master-port PORT", "MASTER_PORT (default: a free port)", type=port)
    _option(network, "--interface NAME", "network interface for gloo and NCCL on every host")


def add_what(p: Parser) -> None:
    """Add the options for the job itself."""
    what = p.add_argument_group("job")
    option(what, "-m", "run a module, as `python -m` does", dest="module")
    _option(what, "--name NAME", "name of the job, to use in `muster logs NAME` (default: that of the script)")
    add_env(what)
    _flag(what, "--sync", "copy the working directory (files git would track) to each host and run there")
    about = "with --sync, copy files matching PATH (a path or glob) back when the ranks have ended (repeatable)"
    option(what, "--fetch PATH", about, action="append", default=[])
    about = "import MODULE once per host before the ranks start, in addition to torch (repeatable)"
    option(what, "--preload MODULE", about, action="append", default=[])
    for name, about in _SWITCHES.items():
        _flag(what, f"--no-{name}", about, dest=name, action="store_false")
    about = "keep the hosts ready for the next run, which starts at once, for DURATION without a run, such as 30m"
    _option(what, "--keep DURATION", about, type=seconds)
    about = "do not reuse hosts that an earlier run has kept ready, and keep none"
    _option(what, "--no-keep", about, dest="reuse", action="store_false")
    about = (
        "restart all ranks after a failure, up to N times in a row without progress (default: 0; 20 with --spares or "
        "--min-hosts)"
    )
    _option(what, "--restarts N", about, type=natural)
    about = "time for ranks to exit after Ctrl-C or SIGTERM, such as 30s or 2m (default: 5s)"
    _option(what, "--grace DURATION", about, type=seconds)
    about = "report a hang after DURATION without progress, such as 90s or 5m (default: 30s; 0: never)"
    _option(what, "--hang-after DURATION", about, type=seconds)
    about = "on a hang: report it and keep running (default), or also kill the job with exit code 124"
    _option(what, "--on-hang", about, choices=("report", "kill"))
    about = "when the job ends or hangs: run a shell command, `desktop`, or post to a URL (repeatable)"
    option(what, "--notify WHAT", about, action="append", default=[])
    about = "run in the background, even after logout; prints the job's id when its ranks have started"
    flag(what, "--detach", about)
    about = "with --detach: host that runs the controller (default: the first remote host; `local`: this machine)"
    _option(what, "--controller HOST", about)


def add_host_loss(p: Parser) -> None:
    """Add the options for lost and leaving hosts."""
    hosts = p.add_argument_group("lost hosts")
    _option(hosts, "--spares N", "keep the last N hosts ready to replace lost ones; they run no ranks", type=natural)
    about = "continue with fewer hosts, at least N, when a host is lost and no spare is left"
    _option(hosts, "--min-hosts N", about, type=positive)
    about = "with --min-hosts, use hosts that return: at the next `restart`, or by a restart after a time such as 10m"
    _option(hosts, "--rejoin WHEN", about, type=rejoin)
    about = (
        "treat a host as lost after DURATION without contact (default: 5s with --spares or --min-hosts, else 20s; "
        "20s for pods)"
    )
    _option(hosts, "--lost-after DURATION", about, type=silence)
    _flag(hosts, "--avoid-bad", "do not use hosts whose hardware failed in earlier jobs")
    about = "run CMD on each host every 2s; exit code 0: the host is about to go away (or use `aws`, `gcp`, `azure`)"
    _option(hosts, "--notice CMD", about)
    about = "signal that asks all ranks to save when a host is about to go away (default: USR1)"
    _option(hosts, "--drain-signal NAME", about, choices=("USR1", "USR2", "TERM", "INT", "HUP"))


def add_screen(p: Parser) -> None:
    """Add the options for output."""
    screen = p.add_argument_group("output")
    flag(screen, "--dry-run", "print the plan and all commands without running anything")
    add_quiet(screen)
    add_debug(screen)
    about = "show output of these ranks only (0 or 0,4-7); log files keep all output"
    _option(screen, "--only-rank RANKS", about, dest="only_ranks", type=rank_set)
    _flag(screen, "--dashboard", "serve the dashboard while the job runs and print its address")
    _option(screen, "--dashboard-port PORT", "port of the dashboard (default: a free one)", type=port)
    _option(screen, "--page", argparse.SUPPRESS, dest="dashboard")  # their former names
    _option(screen, "--page-port PORT", argparse.SUPPRESS, dest="dashboard_port", type=port)


def add_env(group: argparse._ArgumentGroup) -> None:
    """Add `--env` and `--env-file`."""
    about = "set an environment variable in every rank; NAME alone copies its value from here (repeatable)"
    option(group, "--env NAME[=VALUE]", about, action="append", default=[])
    about = "read environment variables from FILE (- for stdin), one NAME=VALUE or NAME per line (repeatable)"
    option(group, "--env-file FILE", about, action="append", default=[])


def add_quiet(group: argparse._ArgumentGroup) -> None:
    """Add `--quiet`."""
    _flag(group, "--quiet", "print only errors from Muster")


def add_debug(group: argparse._ArgumentGroup) -> None:
    """Add `--debug`."""
    _flag(group, "--debug", "print the debug log to stderr as well")


def run_parser(**settings: Any) -> Parser:
    """Return a parser with all options of `muster run`; what follows them is `command`."""
    p = Parser(prog="muster run", **settings)
    add_where(p)
    add_engine(p)
    add_what(p)
    add_host_loss(p)
    add_network(p)
    add_screen(p)
    add_torchrun(p)
    p.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return p


def parse_options(p: Parser, argv: Sequence[str], command: str, *, places: bool = True) -> argparse.Namespace:
    """Parse the command line of a command that starts ranks, on top of the defaults of the configuration files.

    Adds `config`, `origins` (settings of the files by name) and `typed` (names set on the command line) to the result.
    Without `places`, the files do not decide where to run.
    """
    options = p.parse_args(argv)
    typed = frozenset(name for name, value in vars(options).items() if value != p.get_default(name))
    config = read_configuration()
    options.origins = {}
    if config is not None:
        from muster.api.config_defaults import Parsers, with_defaults

        parsers = Parsers(command=command, own=p, shared=p if command == "run" else run_parser())
        options = with_defaults(parsers, argv, options, config, places=places)
    options.config, options.typed = config, typed
    if "python" not in typed:
        options.host_python = host_pythons(config)
    return options


def spec_of(options: argparse.Namespace, command: Sequence[str], **fixed: Any) -> RunSpec:
    """Return the run that parsed options and a script with its arguments describe; `fixed` fields override them."""
    target, *args = command or [""]
    given: dict[str, Any] = {"target": target, "args": tuple(args), "cwd": os.getcwd()}
    given |= {"kind": "module" if options.module else "script"} | _typed(options) | fixed
    return RunSpec(**given)


def _typed(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a RunSpec for which options were given."""
    given = {name: value for name, value in vars(options).items() if name in _FIELDS}
    given |= {
        "hosts": _hosts(options),
        "env": _environment(options),
        "preload": tuple(getattr(options, "preload", ())),
        "fetch": tuple(getattr(options, "fetch", ())),
        "notify": tuple(getattr(options, "notify", ())),
    }
    if given.get("namespace") in PER_NODE and not given.get("pods"):
        given["nproc"] = read_per_node(given.pop("namespace"))  # `-n gpu` as of torchrun
    _check_restarts(given)
    return {name: value for name, value in given.items() if value not in (None, ()) and (value != {} or name != "env")}


def _check_restarts(given: Mapping[str, Any]) -> None:
    """Raise UsageError for `--restarts 0`, given explicitly, with an option that is useless without restarts."""
    other = next((name for name in ("spares", "min_hosts") if given.get(name)), "")
    if other and given.get("restarts") == 0:
        shown = f"--{other.replace('_', '-')}"
        raise UsageError(
            f"--restarts 0 contradicts {shown}: a lost host is replaced by a restart", hint="leave one of them out"
        )


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables for every rank: of the configuration files, of --env-file, and of --env."""
    config: Configuration | None = getattr(options, "config", None)
    env = {name: str(setting.value) for name, setting in config.env.items()} if config is not None else {}
    for path in options.env_file:
        env |= _env_file(path).values
    return env | parse_env(options.env, os.environ)


def _env_file(path: str) -> EnvFile:
    from muster.api.env_file import read_env_file

    return read_env_file(path, os.environ)


def check_env_files(options: argparse.Namespace) -> None:
    """UsageError if another process, which runs the job later, cannot read an --env-file."""
    from muster.api.env_file import check_is_kept

    for path in options.env_file:
        check_is_kept(path)


def copied_names(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the environment variables whose values here the ranks get: NAME alone in --env or in an --env-file."""
    in_files = [name for path in options.env_file for name in _env_file(path).copied]
    return tuple(dict.fromkeys([*in_files, *(name for name in options.env if "=" not in name)]))


def _hosts(options: argparse.Namespace) -> tuple[Host, ...] | None:
    """Return the hosts of -H or --hostfile; None if neither is given."""
    given = [name for name in ("hosts", "hostfile", "lab", "pods") if getattr(options, name, None)]
    if len(given) > 1 and given != ["hosts", "lab"]:
        flags = " and ".join("-H" if name == "hosts" else f"--{name}" for name in given)
        raise UsageError(f"{flags} cannot be used together", hint="leave one of them out")
    if options.hosts is not None:
        configured = getattr(options, "origins", {}).get("hosts")
        source = configured.place if configured is not None else "-H"
        config = options.config if hasattr(options, "config") else read_configuration()
        return parse_hosts(options.hosts, source=source, groups=host_groups(config))
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    return None


def asking_for_allocation(options: argparse.Namespace) -> Engine | None:
    """Return the engine of which an option such as --slurm-args requests a new allocation."""
    return next((engine for engine in built_in() if _asked(engine, options) is not None), None)


def allocate(engine: Engine, options: argparse.Namespace, spec: RunSpec, argv: Sequence[str], target: str) -> int:
    """Get the allocation that the options request and run `muster ARGV` inside it; returns its exit code."""
    if spec.engine not in ("auto", engine.name):
        raise UsageError(
            f"{engine.allocation_option} needs --engine {engine.name}, got {spec.engine}",
            hint="leave one of them out",
        )
    check_env_files(options)
    dry_run, detach = getattr(options, "dry_run", False), getattr(options, "detach", False)
    return engine.allocate(_asked(engine, options) or "", argv, target, dry_run=dry_run, detach=detach)


def _asked(engine: Engine, options: argparse.Namespace) -> str | None:
    dest = engine.allocation_option.lstrip("-").replace("-", "_")
    return getattr(options, dest) if dest else None


def spec_with(spec: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """Set fields of a run as a Python caller writes them: `hosts` as a string or list, values of `env` of any type."""
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        near = get_close_matches(unknown[0], _FIELDS, 1)
        hint = f"did you mean {near[0]}?" if near else "the options are the fields of muster.RunSpec"
        raise UsageError(f"unknown option {unknown[0]}", hint=hint)
    values = {name: _value(name, value) for name, value in given.items() if value is not None}
    _check_restarts(values)
    if "hosts" in values and not {"python", "host_python"} & values.keys():
        values["host_python"] = host_pythons(read_configuration())
    if "env" in values:
        values["env"] = {**spec.env, **values["env"]}
    return replace(spec, **values)


def _value(name: str, value: Any) -> Any:
    """Convert a field's value from the forms a Python caller may write."""
    if name == "hosts":
        listed = cast("Sequence[object]", [value] if isinstance(value, str) else value)
        if not isinstance(listed, list | tuple) or not all(isinstance(each, str | Host) for each in listed):
            raise UsageError(f"hosts must be a string or a list of strings, got {value!r}", hint='hosts="a:8,b:8"')
        return parse_hosts(",".join(map(str, listed)), groups=host_groups(read_configuration()))
    if name == "env":
        if not isinstance(value, Mapping):
            raise UsageError(f"env must be a dict, got {value!r}", hint='write env={"NAME": "value"}')
        return {variable: str(text) for variable, text in cast("Mapping[str, object]", value).items()}
    if name in ("only_ranks", "only_local_ranks") and isinstance(value, list | tuple | set):
        return frozenset(cast("list[int]", value))
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def parse_words(words: Sequence[str]) -> argparse.Namespace:
    """Parse options as typed after `muster run`; refuses those that do not apply to a call from Python."""
    options = run_parser().parse_args(words)
    if options.command:
        raise UsageError(f"options: `{options.command[0]}` is not an option of `muster run`", hint="remove it")
    refused = {
        "module": ("-m", "pass a function of the module instead"),
        "detach": ("--detach", "call launch() in a thread to continue meanwhile"),
        "dry_run": ("--dry-run", "`muster run --dry-run` prints the plan of a script"),
    }
    engine = asking_for_allocation(options)
    if engine is not None:
        hint = "run this program inside the allocation; launch() then uses its hosts"
        raise UsageError(f"options: launch() does not support {engine.allocation_option}", hint=hint)
    for name, (typed, hint) in refused.items():
        if getattr(options, name):
            raise UsageError(f"options: launch() does not support {typed}", hint=hint)
    refuse(options)
    if hasattr(options, "python"):
        options.host_python = {}
    elif options.hosts or options.hostfile:
        options.host_python = host_pythons(read_configuration())
    return options


def spec_as_typed(spec: RunSpec, options: argparse.Namespace) -> RunSpec:
    """Set fields of a run from parsed options; environment variables are added to those it has."""
    typed = _typed(options)
    return replace(spec, **{**typed, "env": {**spec.env, **typed.get("env", {})}})
