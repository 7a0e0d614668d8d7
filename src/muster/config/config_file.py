"""One configuration file, parsed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from muster.config.config_search import is_pyproject, shown_path
from muster.errors import UsageError
from muster.text import printable

_HEADER = re.compile(r"\s*\[+([^\[\]]+)\]")
_KEY = re.compile(r"\s*([^=#\[]+?)\s*=")


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """One configuration file."""

    path: str
    """Absolute."""
    label: str
    """The path as messages show it: relative if below the working directory, else with `~` for the home directory."""
    table: Mapping[str, Any]
    """Its content; in pyproject.toml, the table [tool.muster]."""
    text: str = field(repr=False)
    prefix: tuple[str, ...] = ()
    """The tables around the content: `tool`, `muster` in pyproject.toml."""

    def place(self, *keys: str) -> str:
        """Return `muster.toml:3` for the line with a key, or only the file if the line cannot be found."""
        line = _line_of(self.text, (*self.prefix, *keys))
        return f"{self.label}:{line}" if line else self.label


def parse_file(path: str, data: bytes, cwd: str) -> ConfigFile:
    """Parse a file; UsageError with the line of a syntax error."""
    label = shown_path(path, cwd)
    prefix = ("tool", "muster") if is_pyproject(path) else ()
    text, table = _parsed(data, label, prefix)
    for name in prefix:
        table: object = cast("dict[str, object]", table).get(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"{label}: {name} must be a table", hint="write [tool.muster] on a line of its own")
    return ConfigFile(path=path, label=label, table=cast("dict[str, Any]", table), text=text, prefix=prefix)


def _parsed(data: bytes, label: str, prefix: tuple[str, ...]) -> tuple[str, Any]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{label}: not a text file", hint="save it as UTF-8") from None
    try:
        return text, toml.loads(text)
    except RecursionError:
        raise UsageError(f"{label}: too many arrays or tables inside each other", hint="write it flatter") from None
    except ValueError as error:  # TOMLDecodeError, or that of a number with thousands of digits
        why, _, at = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", at)
        place = f"{label}:{line[1]}" if line else label
        if line:
            _refuse_hosts_twice(text, (*prefix, "hosts"), int(line[1]), place)
        column = re.search(r"column \d+", at)
        where = f" at {column[0]}" if column else " at the end of the file" if at else ""
        sentence = printable(f"{place}: {why[:1].lower()}{why[1:]}{where}")
        raise UsageError(sentence, hint="the format is TOML: https://toml.io") from None


def _refuse_hosts_twice(text: str, key: tuple[str, ...], header: int, place: str) -> None:
    """Explain the error in the line of [hosts] after a default `hosts = ...` outside of tables: invalid TOML."""
    lines = text.splitlines()
    table = _HEADER.match(lines[header - 1])
    first = _line_of(text, key)
    if table and _parts(table[1]) == key and 0 < first < header:
        run, default = ".".join((*key[:-1], "run")), lines[first - 1].strip()
        raise UsageError(
            f"{place}: [{table[1]}] holds the host groups, so line {first} cannot set hosts",
            hint=f"move line {first} into the table of `muster run`: [{run}], and below it {default}",
        )


def _line_of(text: str, keys: Sequence[str]) -> int:
    """Return the number of the line that sets a key, or of the table that contains it; 0 if neither is found."""
    best, length = 0, 0
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            here = table = _parts(header[1])
        elif key:
            here = (*table, *_parts(key[1]))
        else:
            continue
        if len(here) > length and tuple(keys[: len(here)]) == here:
            best, length = number, len(here)
    return best


def _parts(dotted: str) -> tuple[str, ...]:
    """Split a dotted key: `host."gpu.02"` has two parts."""
    found = re.findall(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([^.\s\"']+))\s*(?:\.|$)", dotted)
    return tuple("".join(groups) for groups in found)
