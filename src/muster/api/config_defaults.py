"""Option defaults of the configuration files: the command line is parsed on top of them."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from muster.api.arguments import Parser, inverse
from muster.config import Configuration, Setting, read_configuration
from muster.config.configuration import TABLES, shown
from muster.engines.table import JOB_IDS, built_in
from muster.errors import UsageError

_JOINED = {"HOSTS", "RANKS", "NAMES"}
"""Values that are a list with commas, by their names in --help."""


def parse_configured(
    p: Parser, argv: Sequence[str], command: str, shared: Parser, *, places: bool = True
) -> argparse.Namespace:
    """Parse a command line; options that it does not set get the defaults of the configuration files.

    Keys outside of tables are defaults for all commands with such an option, and must be options of `shared`, the
    parser of `muster run`. Without `places`, defaults for where to run are ignored. Adds to the result: `config`,
    `origins` (settings of the files by name in the result) and `typed` (names set on the command line).
    """
    given = p.parse_args(argv)
    config = read_configuration()
    base = argparse.Namespace()
    origins = _effective(config, p, command, shared) if config.files else {}
    if not places or _is_inside_job(os.environ) or any(getattr(given, dest, None) for dest in place_names()):
        origins = {dest: setting for dest, setting in origins.items() if dest not in place_names()}
    for setting in origins.values():
        _apply(p, setting, base)
    options = p.parse_args(argv, base) if origins else given
    if getattr(options, "image", None) is None:  # defaults for containers have no effect on a run without one
        for dest in {"container", "container_args"} & origins.keys() - vars(given).keys():
            delattr(options, dest)
    options.config, options.origins = config, origins
    options.typed = frozenset(name for name, value in vars(given).items() if value != p.get_default(name))
    if config.files and "python" not in options.typed:
        options.host_python = host_pythons(config)
    return options


def host_pythons(config: Configuration) -> dict[str, str]:
    """Return the Python of each host that has one of its own, by the host's name."""
    return {host: str(setting.value) for host, setting in config.pythons.items()}


def place_names() -> frozenset[str]:
    """Return the names of the options for where to run, which exclude each other."""
    allocations = (engine.allocation_option.lstrip("-").replace("-", "_") for engine in built_in())
    return frozenset({"hosts", "hostfile", "lab", *filter(None, allocations)})


def _is_inside_job(env: Mapping[str, str]) -> bool:
    """Return whether this is a scheduler's job, which has its own hosts."""
    return any(env.get(name) for name in JOB_IDS)


def _effective(config: Configuration, p: Parser, command: str, shared: Parser) -> dict[str, Setting]:
    """Return the setting in effect for each name in the parsed options; UsageError for an unknown key."""
    found: dict[str, Setting] = {}
    places = place_names()
    for setting in config.defaults(command):
        in_table = len(setting.path) > 1
        if _option_of(p if in_table else shared, setting.key) is None:
            raise _unknown(setting, p if in_table else shared)
        action = _option_of(p, setting.key)
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
    where = f" in [{setting.path[0]}]" if len(setting.path) > 1 else ""
    return setting.error(f"unknown key `{setting.key}`{where}", hint=hint)


def _apply(p: Parser, setting: Setting, base: argparse.Namespace) -> None:
    """Parse one setting as if it had been typed, with errors that start with the file."""
    name = f"--{setting.key.replace('_', '-')}"
    action = p._option_string_actions[name]
    try:
        p.parse_args(_words(setting, action, name), base)
    except UsageError as error:
        sentence = error.message.removeprefix(f"{p.prog}: ")
        for each in action.option_strings:
            sentence = sentence.removeprefix(f"{each}: ")
        raise setting.error(f"{setting.key}: {sentence}", hint=f"see {name} in `{p.prog} --help`") from None


def _words(setting: Setting, action: argparse.Action, name: str) -> list[str]:
    """Return a setting as words of a command line."""
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
