"""Option defaults of the configuration files: the command line is parsed on top of them."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from muster.api.arguments import Parser, inverse
from muster.config.configuration import TABLES, Configuration, Setting, shown
from muster.engines.table import JOB_IDS, built_in
from muster.errors import UsageError

_JOINED = {"HOSTS", "RANKS", "NAMES"}
"""Values that are a list with commas, by their names in --help."""

_NEEDS = {"container": "image", "container_args": "image", "fetch": "sync", "controller": "detach"}
"""Options that are an error without another one; as defaults, they have no effect without it."""


@dataclass(frozen=True, kw_only=True)
class Parsers:
    """A command with its parser."""

    command: str
    own: Parser
    shared: Parser
    """The parser of `muster run`; keys outside of tables must be its options."""


def with_defaults(
    parsers: Parsers, argv: Sequence[str], given: argparse.Namespace, config: Configuration, *, places: bool
) -> argparse.Namespace:
    """Return the options of a command line, `given`, on top of the defaults of the configuration files.

    Without `places`, defaults for where to run are ignored. `origins` of the result has the settings by their names.
    """
    p = parsers.own
    base = argparse.Namespace()
    origins = _effective(config, parsers)
    unused = _unused_places(given) if places else place_names()
    origins = {dest: setting for dest, setting in origins.items() if dest not in unused}
    if "hosts" in unused and _is_in_job() and _is_of_this_machine(origins.get("engine")):
        del origins["engine"]
    for setting in origins.values():
        _apply(p, setting, base)
    asked = p.parse_args(argv, argparse.Namespace(**vars(base)))
    idle = {dest for dest, needed in _NEEDS.items() if dest in origins and not getattr(asked, needed, None)}
    for dest in idle:
        delattr(base, dest)
    options = p.parse_args(argv, base)
    options.origins = {dest: setting for dest, setting in origins.items() if dest not in idle}
    return options


def place_names() -> frozenset[str]:
    """Return the names of the options for where to run, which exclude each other."""
    return frozenset({"hosts", "hostfile", "lab", *_allocation_names().values()})


def _allocation_names() -> dict[str, str]:
    """Return the names of the options that request an allocation, such as `slurm_args`, by engine."""
    options = {engine.name: engine.allocation_option for engine in built_in() if engine.allocation_option}
    return {name: option.lstrip("-").replace("-", "_") for name, option in options.items()}


def _unused_places(given: argparse.Namespace) -> frozenset[str]:
    """Return the options for where to run whose defaults have no effect: all if the command line or a job decides."""
    engine: str | None = getattr(given, "engine", None)
    if _is_in_job() or engine == "local" or any(getattr(given, dest, None) for dest in place_names()):
        return place_names()
    return frozenset(dest for name, dest in _allocation_names().items() if engine not in (None, "auto", name))


def _is_in_job() -> bool:
    return any(os.environ.get(name) for name in JOB_IDS)


def _is_of_this_machine(engine: Setting | None) -> bool:
    """Return whether a default engine cannot use the hosts of a scheduler's job."""
    return engine is not None and engine.value in ("ssh", "local")


def _effective(config: Configuration, parsers: Parsers) -> dict[str, Setting]:
    """Return the setting in effect for each name in the parsed options; UsageError for an unknown key."""
    found: dict[str, Setting] = {}
    places = place_names()
    for setting in config.defaults(parsers.command):
        p = parsers.own if setting.path[:-1] == (parsers.command,) else parsers.shared
        if _option_of(p, setting.key) is None:
            raise _unknown(setting, p)
        action = _option_of(parsers.own, setting.key)
        if action is None:
            continue
        if action.dest in places:
            found = {dest: each for dest, each in found.items() if dest not in places or _beside(each, setting)}
            others = [each.key for dest, each in found.items() if dest in places]
            if others:
                hint = "remove one of them"
                raise setting.error(f"{others[0]} and {setting.key} cannot be used together", hint=hint)
        found[action.dest] = setting
    return found


def _beside(one: Setting, other: Setting) -> bool:
    """Return whether two settings are in the same table of the same file."""
    return one.file is other.file and one.path[:-1] == other.path[:-1]


def _option_of(p: Parser, key: str) -> argparse.Action | None:
    """Return the option with a key as its name; hidden ones do not count, unless they are the inverse of a flag."""
    action = p._option_string_actions.get(f"--{key.replace('_', '-')}")
    is_option = action is not None and (action.help != argparse.SUPPRESS or hasattr(action, "is_inverse"))
    return action if is_option and key not in ("help", "env") else None


def _unknown(setting: Setting, p: Parser) -> UsageError:
    from muster.api.hints import nearest

    names = [name for name in p.shown_options() if name.startswith("--") and name not in ("--help", "--env")]
    tables = [] if len(setting.path) > 1 else [f"--{table}" for table in TABLES]
    near = nearest(f"--{setting.key}", [*names, *tables]).removeprefix("--")
    hint = f"did you mean `{near}`?" if near else f"keys are the long options of `{p.prog} --help`, without `--`"
    if not near and tables:
        hint += "; options of other commands go into [check], [bench] or [submit]"
    where = f" in [{setting.path[0]}]" if len(setting.path) > 1 else ""
    return setting.error(f"unknown key `{setting.key}`{where}", hint=hint)


def _apply(p: Parser, setting: Setting, base: argparse.Namespace) -> None:
    """Parse one setting as if it had been typed, with errors that start with the file."""
    name = f"--{setting.key.replace('_', '-')}"
    action = p._option_string_actions[name]
    try:
        words = _words(setting, action, name)
        p.parse_args([word for word in words if action.nargs != 0 or word in p._option_string_actions], base)
    except UsageError as error:
        sentence = error.message.removeprefix(f"{p.prog}: ")
        for each in action.option_strings:
            sentence = sentence.removeprefix(f"{each}: ")
        raise setting.error(f"{setting.key}: {sentence}", hint=f"see {name} in `{p.prog} --help`") from None


def _words(setting: Setting, action: argparse.Action, name: str) -> list[str]:
    """Return a setting as words of a command line; `--no-deep` may not be an option, as it is the default."""
    value: Any = setting.value
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"must be true or false, got {shown(value)}")
        return [name if value else inverse(name)]
    if isinstance(value, dict):
        raise UsageError("must be one value, got a table")
    if isinstance(value, list):
        items = cast("list[object]", value)
        words = [each if isinstance(each, str) else shown(each) for each in items]
        if isinstance(action, argparse._AppendAction):
            return [f"{name}={_path(setting, action, word)}" for word in words]
        if action.metavar == "ARGS":
            return [f"{name}={shlex.join(words)}"]
        if action.metavar not in _JOINED:
            raise UsageError(f"must be one value, got {shown(items)}")
        return [f"{name}={','.join(words)}"]
    return [f"{name}={_path(setting, action, value if isinstance(value, str) else shown(value))}"]


def _path(setting: Setting, action: argparse.Action, word: str) -> str:
    """Return a value; the path of a file is relative to the directory of the configuration file."""
    if action.metavar != "FILE":
        return word
    return os.path.join(os.path.dirname(setting.file.path), os.path.expanduser(word))
