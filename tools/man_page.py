"""Writes man/muster.1, the manual page, from the parsers of all commands: `python -m tools.man_page`.

The page is kept in the repository and shipped in the wheel; a test fails when it is not what the code says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from muster import __version__
from muster.cli import HELP
from muster.cli.command_table import CommandWords, OptionWords, command_table
from muster.errors import EXIT_HANG, EXIT_MUSTER, EXIT_USAGE

PAGE = Path(__file__).parents[1] / "man" / "muster.1"

DATE = "2026-11-16"
"""The date of the page, as mandoc wants one."""

_EXIT_CODES = {
    "0": "All ranks ended with exit code 0, or the command succeeded.",
    "1 to 255": "muster run: the exit code of the rank that failed first; 128 + n if signal n ended it.",
    str(EXIT_USAGE): "The command line, a host list or a file is wrong; nothing was started.",
    str(EXIT_HANG): "muster run with --on-hang kill: the job hung.",
    str(EXIT_MUSTER): "Muster or a host failed, not the script.",
    "130": "Ctrl-C.",
}

_FILES = {
    "~/.local/state/muster/jobs": "One directory per job: plan, logs, last state. XDG_STATE_HOME moves it.",
    "muster.toml, pyproject.toml [tool.muster]": "Configuration of a project: host groups and default options.",
    "~/.config/muster/config.toml": "The same for all projects of a user.",
}


def man_page(table: Sequence[CommandWords]) -> str:
    """The whole page."""
    commands = [command for command in table if len(command.words) == 1]
    lines = [
        '.\\" written by `python -m tools.man_page`',
        f'.TH MUSTER 1 {DATE} "Muster {__version__}" "User Commands"',
        ".SH NAME",
        r"muster \- run PyTorch scripts on every GPU you have",
        ".SH SYNOPSIS",
        ".B muster",
        ".I COMMAND",
        "[options]",
        ".SH DESCRIPTION",
        _text(HELP.split("\n\n")[1]),
        ".PP",
        "The commands are:",
        *(line for command in commands for line in _item(command.words[0], command.about)),
        ".PP",
        r"\fBmuster help\fR \fICOMMAND\fR prints the section of one command.",
        ".SH COMMANDS",
        *(line for command in _without_repetition(table) for line in _section(command)),
        ".SH EXIT STATUS",
        *(line for code, about in _EXIT_CODES.items() for line in _item(code, about)),
        ".SH FILES",
        *(line for name, about in _FILES.items() for line in _item(name, about)),
        ".SH SEE ALSO",
        ".BR torchrun (1),",
        ".BR ssh (1),",
        ".BR srun (1),",
        ".BR mpirun (1)",
    ]
    return "\n".join(lines) + "\n"


def _without_repetition(table: Sequence[CommandWords]) -> Iterator[CommandWords]:
    """The commands; `muster submit` without the options of `muster run`, which it takes as well."""
    run = next(command for command in table if command.words == ("run",))
    for command in table:
        own = tuple(option for option in command.options if option not in run.options)
        yield replace(command, options=own) if command.words == ("submit",) else command


def _section(command: CommandWords) -> Iterator[str]:
    """One command with its options and examples."""
    yield f".SS {_text('muster ' + ' '.join(command.words))}"
    yield _text(command.description or command.about)
    for line in command.usage.splitlines():
        yield ".PP"
        yield _text(" ".join(line.split()))
    for group, options in groupby(command.options, lambda option: option.group):
        if group != "options":
            yield ".PP"
            yield rf"\fI{_text(group)}\fR"
        for option in options:
            yield from _option(option)
    for block in re.split(r"\n{2,}", command.epilog.strip()) if command.epilog else ():
        if re.match(r"examples?:|  ", block):
            yield from [".PP", ".nf", *(_text(line.rstrip()) for line in block.splitlines()), ".fi"]
        else:
            yield from [".PP", _text(" ".join(block.split()))]


def _option(option: OptionWords) -> Iterator[str]:
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in option.names)
    value = rf" \fI{_text(option.value.name)}\fR" if option.value.name else ""
    yield ".TP"
    yield f"{names}{value}"
    if option.about:
        yield _text(option.about)


def _item(name: str, about: str) -> list[str]:
    return [".TP", rf"\fB{_text(name)}\fR", _text(about)]


def _text(text: str) -> str:
    """A line of text for roff: no backslash, dash or dot of it is a command."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...").replace("`", r"\(ga").replace("^", r"\(ha")
    text = text.replace("~", r"\(ti").replace("'", r"\(aq")
    return rf"\&{text}" if text.startswith((".", " ")) else text


def write() -> None:
    """Write the page where it is kept."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(man_page(command_table()), encoding="utf-8")


if __name__ == "__main__":
    write()
