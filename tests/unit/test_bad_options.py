"""Every option of every command with values that nobody should type: one sentence, or taken as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bad_input import Case, problems, work
from parsers_once import parsers_once

from muster.cli.command_table import CommandWords, OptionWords, command_table

__all__ = ["parsers_once", "work"]  # fixtures
pytestmark = pytest.mark.timeout(120)

VALUES = {
    "empty": "",
    "space": " ",
    "negative": "-1",
    "zero": "0",
    "large": "99999999999",
    "5,000 digits": "9" * 5000,
    "nan": "nan",
    "inf": "inf",
    "superscript": "²",
    "other digits": "٣",
    "letters": "gpü",
    "not UTF-8": "\udcff",
    "long": "x" * 300,
    "very long": "x" * 20_000,
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape": "\x1b[31m",
    "path": "../../etc/passwd",
    "directory": "/",
    "dash": "-",
    "shell": "$(id)",
    "device": "/dev/zero",
    "commas": ",,",
    "equals": "=",
}

NUMBER = frozenset(VALUES) - {"zero", "large"}
"""What no number may be."""

TEXTS = frozenset({"empty", "space", "NUL"})
"""What not even a free text may be."""

REFUSED = {
    "N": NUMBER,
    "PORT": NUMBER | {"zero", "large"},
    "DURATION": NUMBER,
    "RANKS": NUMBER | {"large"},
    "CORES": NUMBER | {"zero", "large"},
    "HOSTS": frozenset(VALUES) - {"zero", "large", "5,000 digits", "nan", "inf", "long", "very long"},
    "WHEN": NUMBER,
    "MODULE": TEXTS | {"negative", "zero", "large", "newline", "escape", "path", "dash", "shell", "commas"},
    "ADDRESS": TEXTS
    | {"negative", "superscript", "letters", "not UTF-8", "long", "newline", "escape", "path", "shell"},
    "FILE": frozenset(VALUES) - {"dash"},  # `--env-file -` reads stdin
    "NAME[=VALUE]": frozenset(VALUES),
    "ARGS": frozenset({"NUL"}),
}
"""The values that options with such a placeholder must refuse; the others only those that no option takes."""

FEW = ("empty", "negative", "not UTF-8", "very long", "newline")
"""The values for options that a command shares with `muster run`, which gets all of them."""

ARGUMENTS = {"N": "2", "HOST": "h1", "PERCENT": "5", "DURATION": "5", "PORT": "80", "JOB": "last", "NAME": "hello"}
AFTER = {"run": ("--dry-run", "train.py"), "submit": ("--slurm", "--dry-run", "train.py"), "bench": ("--dry-run",)}


TABLE = command_table()
RUN = {option.names[-1] for command in TABLE if command.words == ("run",) for option in command.options}


def cases_of(command: CommandWords, option: OptionWords) -> Iterator[Case]:
    """The option with each value, in both ways to write it."""
    words = [ARGUMENTS[one.name] for one in command.arguments if one.kind != "script" and one.name in ARGUMENTS]
    after = (*words, *AFTER.get(command.words[0], ()))
    refused = REFUSED.get(option.value.name, TEXTS)
    if option.value.kind == "choices":
        refused = frozenset(VALUES)
    shared = command.words[0] in ("check", "bench", "submit", "config") and option.names[-1] in RUN
    for about, value in VALUES.items():
        if shared and about not in FEW:
            continue
        only_shown = command.words == ("config",) and option.value.name not in ("N", "PORT", "DURATION", "RANKS")
        code = 2 if about in (refused & TEXTS if only_shown and option.value.kind != "choices" else refused) else None
        yield Case(argv=(*command.words, f"{option.names[-1]}={value}", *after), code=code)
        if about in ("zero", "letters"):
            yield Case(argv=(*command.words, option.names[0], value, *after), code=code)


def all_cases(command: CommandWords) -> list[Case]:
    """Every option of a command with each value."""
    return [case for one in command.options if one.value.kind != "flag" for case in cases_of(command, one)]


@pytest.mark.parametrize("command", TABLE, ids=lambda one: " ".join(one.words))
def test_every_option_refuses_nonsense_in_one_sentence(command: CommandWords):
    assert problems(all_cases(command)) == []


def test_the_table_has_thousands_of_cases():
    assert sum(len(all_cases(command)) for command in TABLE) > 2000


@pytest.mark.parametrize("command", TABLE, ids=lambda one: " ".join(one.words))
def test_every_command_refuses_nonsense_in_place_of_its_arguments(command: CommandWords):
    cases = [Case(argv=(*command.words, value)) for about, value in VALUES.items() if about not in ("negative",)]
    assert problems(cases) == []
