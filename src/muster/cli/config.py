"""`muster config`: shows the options in effect and where each one comes from."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from typing import cast

from muster.api.arguments import Parser
from muster.api.env_file import read_env_file
from muster.api.run_options import parse_options, run_parser
from muster.cli import bench, check, submit
from muster.config.config_search import VARIABLE, user_path
from muster.config.configuration import Configuration, shown
from muster.controller.notifications import shown as shown_way
from muster.environment import SECRET_NAME, carried
from muster.errors import UsageError
from muster.hosts import parse_hosts
from muster.spec import RunSpec
from muster.text import printable

EXAMPLES = """\
examples:
  muster config                     options of `muster run` in this directory
  muster config --nproc 4 -H @lab   the same with options of a command line
  MUSTER_CONFIG= muster config      without the configuration file of the project

Files, the first one takes precedence:
  muster.toml, or [tool.muster] in pyproject.toml, in the working directory or the nearest directory above it
  ~/.config/muster/config.toml
"""

_COMMANDS = {"check": check, "bench": bench, "submit": submit}
"""The other commands with a table of their own."""

_DEFAULTS = {
    field.name: field.default if field.default is not MISSING else None
    for field in fields(RunSpec)
    if field.default_factory is MISSING
}


def parser() -> Parser:
    """Return the parser of `muster config`: the options of `muster run`."""
    p = run_parser(
        usage="muster config [options of muster run]",
        description="Show the options in effect for `muster run` and where each one comes from.",
        epilog=EXAMPLES,
    )
    p.prog = "muster config"
    return p


def main(argv: list[str]) -> int:
    """Print the configuration and return the exit code."""
    p = parser()
    if "-h" in argv or "--help" in argv:
        sys.stdout.write(f"usage: {p.usage}\n\n{p.description}\n\n{EXAMPLES}")
        return 0
    options = parse_options(p, argv, "run")
    if options.command:
        raise UsageError(
            f"muster config: unexpected `{options.command[0]}`", hint="give options of `muster run`, without a script"
        )
    config: Configuration = options.config or Configuration(files=())
    lines = list(_files(config))
    for title, rows in (
        ("options", list(_options(p, options))),
        *((f"[{name}]", list(_own_options(name, module.parser()))) for name, module in _COMMANDS.items()),
        ("environment variables sent to ranks", list(_environment(options, config))),
        ("host groups", list(_groups(config))),
        ("Python per host", list(_pythons(options, config))),
    ):
        if rows:
            lines += ["", f"{title}:", *_aligned(rows)]
    print("\n".join(lines))
    return 0


def _files(config: Configuration) -> Iterator[str]:
    yield "configuration files:"
    for file in config.files:
        yield f"  {file.label}{' [tool.muster]' if file.prefix else ''}"
    if not config.files:
        yield f"  none (searched for muster.toml, and for {user_path(os.environ)})"
    if VARIABLE in os.environ:
        yield f"  {VARIABLE}={os.environ[VARIABLE]} replaces the search for muster.toml"


def _options(p: Parser, options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yield each option of `muster run` with its value and its origin."""
    actions = {p._option_string_actions[name].dest: name for name in reversed(p.shown_options()) if name[:2] == "--"}
    for dest, name in reversed(actions.items()):
        if dest in ("help", "env"):
            continue
        value: object = getattr(options, dest, _DEFAULTS.get(dest))
        text = _text(value)
        if dest == "notify":
            text = ", ".join(map(shown_way, cast("list[str]", value))) or "-"
        elif dest == "dashboard_port" and not value:
            text = "-"
        origins = [options.origins[dest].place] if dest in options.origins else []
        if dest in options.typed:  # a list on the command line adds to that of a file, another value replaces it
            origins = [*(origins if isinstance(value, list) else []), "command line"]
        yield name.removeprefix("--no-").removeprefix("--"), text, " and ".join(origins) or "default"


def _own_options(command: str, p: Parser) -> Iterator[tuple[str, str, str]]:
    """Yield the defaults in the table of another command; UsageError for a wrong one."""
    options = parse_options(p, [], command)
    for setting in options.origins.values():
        if setting.path[0] == command:
            yield setting.key, shown(setting.value), setting.place


def _environment(options: argparse.Namespace, config: Configuration) -> Iterator[tuple[str, str, str]]:
    """Yield each environment variable that Muster gives to ranks; the values of secrets are hidden."""
    found = {name: (value, "environment") for name, value in carried(os.environ).items()}
    found |= {name: (str(setting.value), setting.place) for name, setting in config.env.items()}
    for path in options.env_file:
        found |= {name: (value, path) for name, value in read_env_file(path, os.environ).values.items()}
    for word in options.env:
        name, equals, value = word.partition("=")
        found[name] = (value if equals else os.environ.get(name, ""), "command line")
    for name, (value, origin) in sorted(found.items()):
        yield name, "(hidden)" if SECRET_NAME.search(name) else value, origin


def _groups(config: Configuration) -> Iterator[tuple[str, str, str]]:
    for name, (hosts, place) in config.groups.items():
        parse_hosts(f"@{name}", groups=config.groups)  # UsageError for a wrong one
        yield f"@{name}", hosts, place


def _pythons(options: argparse.Namespace, config: Configuration) -> Iterator[tuple[str, str, str]]:
    for host, python in getattr(options, "host_python", {}).items():
        yield host, python, config.pythons[host].place


def _text(value: object) -> str:
    if value is None or value in ([], (), ""):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset):
        return ", ".join(map(str, sorted(cast("frozenset[int]", value))))
    if isinstance(value, list | tuple):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return f"{value:g}s" if isinstance(value, float) else str(value)


def _aligned(rows: list[tuple[str, str, str]]) -> list[str]:
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [printable(f"  {name:<{first}}  {value:<{min(second, 40)}}  {origin}") for name, value, origin in rows]
