"""All commands with their options, read from their parsers: the source of shell completion and of the man page."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, cast

from muster.api.arguments import Parser
from muster.api.torchrun_options import FLAGS
from muster.cli import COMMANDS
from muster.cli.lab import COMMANDS as LAB_COMMANDS
from muster.cli.lab import FAULTS
from muster.cli.recipes import find_recipes

SUBCOMMANDS: dict[str, list[str]] = {"lab": [*LAB_COMMANDS, *FAULTS], "setup": ["ssh"]}
"""The commands whose first word is a command too, and those words."""

Kind = Literal["flag", "choices", "files", "directories", "hosts", "job", "script", "text"]
"""What follows an option, or stands in the place of an argument."""

_KINDS: dict[str, Kind] = {
    "FILE": "files",
    "PATH": "files",
    "DIR": "directories",
    "FOLDER": "directories",
    "HOSTS": "hosts",
    "JOB": "job",
}
"""What a placeholder in --help stands for; any other is a text of the user's."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """What can be typed in one place of a command line."""

    kind: Kind
    name: str = ""
    """Its placeholder: `HOSTS`."""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OptionWords:
    """One option."""

    names: tuple[str, ...]
    """As they are typed: `-H`, `--hosts`."""
    about: str
    value: Value
    group: str = ""
    """Its heading in --help."""
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandWords:
    """One command or subcommand."""

    words: tuple[str, ...]
    """As it is typed after `muster`: `("lab", "up")`."""
    about: str
    usage: str = ""
    description: str = ""
    epilog: str = ""
    options: tuple[OptionWords, ...] = ()
    arguments: tuple[Value, ...] = ()
    subcommands: tuple[str, ...] = ()


class _Asked(BaseException):
    """Carries a parser out of the command that made it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(words: Sequence[str]) -> argparse.ArgumentParser | None:
    """The parser of a command; None for one that only lists its subcommands."""

    def ask(self: argparse.ArgumentParser, *args: Any, **settings: Any) -> None:
        raise _Asked(self)

    original = Parser.parse_args
    Parser.parse_args = ask  # type: ignore[method-assign, assignment]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import_module(COMMANDS[words[0]][0]).main(list(words[1:]))
    except _Asked as asked:
        return asked.parser
    finally:
        Parser.parse_args = original  # type: ignore[method-assign]
    return None


def command_table() -> list[CommandWords]:
    """`muster help`, then every command in the order of `muster --help`, and each one's subcommands after it."""
    every = Value(kind="choices", name="COMMAND", choices=tuple(COMMANDS))
    table = [CommandWords(words=("help",), about="Show the help of a command", arguments=(every,))]
    for name, (_, about) in COMMANDS.items():
        if name in SUBCOMMANDS:
            table.append(CommandWords(words=(name,), about=about, subcommands=tuple(SUBCOMMANDS[name])))
            for sub in SUBCOMMANDS[name]:
                entry = {**LAB_COMMANDS, **FAULTS}.get(sub)
                table += _read((name, sub), entry.text if name == "lab" and entry is not None else about)
        else:
            table += _read((name,), about)
    return table


def torchrun_words() -> CommandWords:
    """`torchrun` in the place of the script, with the options that Muster accepts after it."""
    options = [
        OptionWords(
            names=tuple(name for name in flag.names if name.startswith("--") or len(name) == 2),
            about="ignored by Muster" if flag.ignored else "",
            value=Value(kind="text", name="VALUE") if flag.reads else Value(kind="flag"),
        )
        for flag in FLAGS
        if not flag.refused
    ]
    (run,) = _read(("run",), "")
    options += [one for one in run.options if {"-m", "--master-addr", "--master-port"} & set(one.names)]
    return CommandWords(words=("torchrun",), about="", options=tuple(options), arguments=run.arguments)


def _read(words: tuple[str, ...], about: str) -> Iterator[CommandWords]:
    parser = parser_of(words)
    if parser is None:
        return
    parsers: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers = cast("Any", action).choices
    yield _command(words, about, parser, subcommands=tuple(parsers))
    for name, sub in parsers.items():
        yield _command((*words, name), sub.description or about, sub)


def _command(
    words: tuple[str, ...], about: str, parser: argparse.ArgumentParser, subcommands: tuple[str, ...] = ()
) -> CommandWords:
    options = list(_options(parser))
    arguments = [_argument(words, action) for action in parser._actions if _is_argument(action)]
    run = parser_of(("run",)) if words == ("submit",) else None
    if run is not None:  # `muster submit` takes every option of `muster run` as well, and a script
        known = {name for one in options for name in one.names}
        options += [one for one in _options(run) if not known & set(one.names)]
        arguments = [Value(kind="script", name="SCRIPT")]
    return CommandWords(
        words=words,
        about=about,
        usage=_usage(parser),
        description=parser.description or "",
        epilog=parser.epilog or "",
        options=tuple(options),
        arguments=tuple(arguments),
        subcommands=subcommands,
    )


def _usage(parser: argparse.ArgumentParser) -> str:
    """The lines after `usage:`; one line, if it is not written by hand."""
    usage = parser.format_usage().strip().removeprefix("usage: ")
    return usage if parser.usage else " ".join(usage.split())


def _is_argument(action: argparse.Action) -> bool:
    return not action.option_strings and not isinstance(action, argparse._SubParsersAction)


def _options(parser: argparse.ArgumentParser) -> Iterator[OptionWords]:
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        for action in group._group_actions:
            if action.option_strings and action.help != argparse.SUPPRESS:
                yield OptionWords(
                    names=tuple(action.option_strings),
                    about=formatter._expand_help(action) if action.help else "",
                    value=_value(action),
                    group=group.title or "options",
                    repeats=isinstance(action, argparse._AppendAction),
                )


def _value(action: argparse.Action) -> Value:
    if action.nargs == 0:
        return Value(kind="flag")
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")
    if action.choices is not None:
        return Value(kind="choices", name=name, choices=tuple(map(str, action.choices)))
    return Value(kind=_KINDS.get(name, "text"), name=name)


def _argument(words: tuple[str, ...], action: argparse.Action) -> Value:
    if words == ("recipes", "copy"):
        return Value(kind="choices", name="NAME", choices=tuple(find_recipes()))
    if action.nargs == argparse.REMAINDER:
        return Value(kind="script", name="SCRIPT")
    return _value(action)
