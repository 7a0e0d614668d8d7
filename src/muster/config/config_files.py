"""Finds, checks and reads configuration files.

Options such as --python and --env run code, so a file that another user can change is refused.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from muster.errors import UsageError

VARIABLE = "MUSTER_CONFIG"
"""The environment variable with the project file to use instead of searching for one; empty for none."""

_MOST_BYTES = 1 << 20
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


def find_files(cwd: str, env: Mapping[str, str]) -> tuple[ConfigFile, ...]:
    """Return the project file and the user file, as far as they exist; the first one takes precedence."""
    found = (_project_file(cwd, env), _read(user_path(env), cwd))
    return tuple(file for file in found if file is not None)


def user_path(env: Mapping[str, str]) -> str:
    """Return the path of the user file."""
    base = env.get("XDG_CONFIG_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "muster", "config.toml")


def _project_file(cwd: str, env: Mapping[str, str]) -> ConfigFile | None:
    """Return the file of the nearest directory, from the working directory up to the home directory or the root."""
    chosen = env.get(VARIABLE)
    if chosen is not None:
        return _chosen_file(chosen, cwd) if chosen else None
    home = os.path.realpath(os.path.expanduser("~"))
    directory = cwd
    while True:
        for name in ("muster.toml", "pyproject.toml"):
            file = _read(os.path.join(directory, name), cwd)
            if file is not None:
                return file
        parent = os.path.dirname(directory)
        if parent == directory or os.path.realpath(directory) == home:
            return None
        directory = parent


def _chosen_file(path: str, cwd: str) -> ConfigFile:
    file = _read(os.path.join(cwd, os.path.expanduser(path)), cwd, trusted=True)
    if file is None:
        raise UsageError(f"{VARIABLE}={path}: no configuration there", hint=f"unset {VARIABLE}, or name a muster.toml")
    return file


def _read(path: str, cwd: str, *, trusted: bool = False) -> ConfigFile | None:
    """Read a file if it exists; a pyproject.toml only if it has a [tool.muster]."""
    label = _label(path, cwd)
    is_pyproject = os.path.basename(path) == "pyproject.toml"
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            data = file.read(_MOST_BYTES + 1) if stat.S_ISREG(about.st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if is_pyproject or isinstance(error, IsADirectoryError):
            return None
        raise UsageError(f"{label}: could not read the file ({error.strerror})", hint=_ignore(path)) from None
    if not stat.S_ISREG(about.st_mode) or (is_pyproject and b"tool.muster" not in data):
        return None
    if not trusted:
        _check_trust(path, label, about)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{label}: larger than {_MOST_BYTES >> 20} MB", hint=_ignore(path))
    prefix = ("tool", "muster") if is_pyproject else ()
    text, table = _parsed(data, label)
    if is_pyproject:
        table = cast("dict[str, dict[str, Any]]", table).get("tool", {}).get("muster", {})
        if not isinstance(table, dict):
            return None
    return ConfigFile(path=path, label=label, table=cast("dict[str, Any]", table), text=text, prefix=prefix)


def _check_trust(path: str, label: str, about: os.stat_result) -> None:
    """Refuse a file that another user owns or can change; root may do anything anyway."""
    if about.st_uid not in (os.getuid(), 0):
        raise UsageError(
            f"{label}: refused, because it belongs to {_owner(about.st_uid)} and can run commands as you",
            hint=f"check the file, then allow it with {VARIABLE}={path}; an empty {VARIABLE}= ignores it",
        )
    if about.st_mode & stat.S_IWOTH:
        raise UsageError(
            f"{label}: refused, because every user can change it and it can run commands as you",
            hint=f"chmod o-w {path}",
        )


def _owner(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _parsed(data: bytes, label: str) -> tuple[str, Any]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = data.decode("utf-8-sig")
        return text, toml.loads(text)
    except UnicodeDecodeError:
        raise UsageError(f"{label}: not a text file", hint="save it as UTF-8") from None
    except toml.TOMLDecodeError as error:
        why, _, at = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", at)
        place = f"{label}:{line[1]}" if line else label
        column = re.search(r"column \d+", at)
        where = f" at {column[0]}" if column else " at the end of the file" if at else ""
        sentence = f"{place}: {why[:1].lower()}{why[1:]}{where}"
        raise UsageError(sentence, hint="the format is TOML: https://toml.io") from None


def _ignore(path: str) -> str:
    return f"make it readable, or ignore it with an empty {VARIABLE}=" if "muster.toml" in path else "make it readable"


def _label(path: str, cwd: str) -> str:
    for base, shown in ((cwd, ""), (os.path.expanduser("~"), "~/")):
        if path.startswith(base.rstrip("/") + "/"):
            return shown + path[len(base.rstrip("/")) + 1 :]
    return path


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
