"""The content of the configuration files: host groups, host settings, environment variables, and option defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from muster.config.config_file import ConfigFile
from muster.errors import UsageError
from muster.hosts import Group
from muster.text import printable

COMMANDS = ("run", "check", "bench", "submit")
"""Commands with a section of their own."""

TABLES = ("hosts", "host", "env", *COMMANDS)
"""Every table that a file may have."""

_GROUP = re.compile(r"[A-Za-z0-9_.-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value in a configuration file."""

    path: tuple[str, ...]
    """The key, after the tables it is in."""
    value: Any
    file: ConfigFile

    @property
    def key(self) -> str:
        """The key without its tables."""
        return self.path[-1]

    @property
    def place(self) -> str:
        """The file and line: `muster.toml:3`."""
        return self.file.place(*self.path)

    def error(self, sentence: str, *, hint: str) -> UsageError:
        """Return an error that starts with the file and line."""
        return UsageError(printable(f"{self.place}: {sentence}"), hint=printable(hint))


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What all files say together."""

    files: tuple[ConfigFile, ...]
    """The one that takes precedence first."""

    @property
    def groups(self) -> dict[str, Group]:
        """Host groups by name, without `@`."""
        return {
            setting.key: (_host_list(setting), setting.place)
            for file in reversed(self.files)
            for setting in _table(file, "hosts")
        }

    @property
    def pythons(self) -> dict[str, Setting]:
        """The Python of each host that has one of its own, by the host's name."""
        return {host: setting for file in reversed(self.files) for host, setting in _pythons(file)}

    @property
    def env(self) -> dict[str, Setting]:
        """Environment variables for every rank, by name."""
        return {setting.key: _variable(setting) for file in reversed(self.files) for setting in _table(file, "env")}

    def defaults(self, command: str) -> Iterator[Setting]:
        """Yield the option defaults for a command; later ones take precedence."""
        for file in reversed(self.files):
            for key, value in file.table.items():
                if key not in TABLES or (key == "hosts" and not isinstance(value, dict)):
                    yield Setting(path=(key,), value=value, file=file)
            used = {command, "run"} if command in ("check", "bench") else {command}
            for each in COMMANDS:  # check and bench examine the hosts that `muster run` would use
                settings = _table(file, each)
                yield from settings if each in used else ()


def _table(file: ConfigFile, name: str) -> list[Setting]:
    table = file.table.get(name, {})
    if not isinstance(table, dict):
        if name == "hosts":
            return []
        setting = Setting(path=(name,), value=table, file=file)
        hint = f"write [{name}] on a line of its own" if table is not False else f"write no-{name} = true"
        raise setting.error(f"{name} must be a table, got {shown(table)}", hint=hint)
    items = cast("dict[str, Any]", table)
    return [Setting(path=(name, key), value=value, file=file) for key, value in items.items()]


def _host_list(setting: Setting) -> str:
    """Return the hosts of a group as -H takes them."""
    example = f'for example {setting.key} = ["gpu01:8", "gpu02:8"]'
    if not _GROUP.fullmatch(setting.key):
        raise setting.error(f"`{setting.key}` cannot be the name of a host group", hint="use letters, digits and . _ -")
    text = joined(setting.value)
    if text is None:
        raise setting.error(f"{setting.key} must be a list of hosts, got {shown(setting.value)}", hint=example)
    return text


def joined(value: object) -> str | None:
    """Return a string, or a list of strings joined with commas; None for anything else."""
    if isinstance(value, str):
        return value
    words = cast("list[object]", value) if isinstance(value, list) else [None]
    texts = [word for word in words if isinstance(word, str)]
    return ",".join(texts) if len(texts) == len(words) else None


def _pythons(file: ConfigFile) -> Iterator[tuple[str, Setting]]:
    for host in _table(file, "host"):
        content: object = host.value
        if not isinstance(content, dict):
            raise host.error(f"host.{host.key} must be a table", hint=f'write [host.{host.key}] and python = "/path"')
        items = cast("dict[str, Any]", content)
        for key, value in items.items():
            setting = Setting(path=(*host.path, key), value=value, file=file)
            if key != "python":
                near = "did you mean `python`?" if get_close_matches(key, ["python"]) else "the only key is `python`"
                raise setting.error(f"unknown key `{key}` in [host.{host.key}]", hint=near)
            if not isinstance(value, str) or not value:
                raise setting.error(f"python must be a path, got {shown(value)}", hint='python = "/opt/bin/python"')
            yield host.key, setting


def _variable(setting: Setting) -> Setting:
    """Check the name and the value of an environment variable."""
    if not _VARIABLE.fullmatch(setting.key):
        sentence = f"`{setting.key}` is not a valid name of an environment variable"
        raise setting.error(sentence, hint='write NAME = "value"')
    hint = f'write {setting.key} = "value"'
    if isinstance(setting.value, bool) or not isinstance(setting.value, str | int | float):
        got = "a list" if isinstance(setting.value, list) else shown(setting.value)  # items may be secrets
        raise setting.error(f"{setting.key} must be a string or a number, got {got}", hint=hint)
    if "\0" in str(setting.value):
        raise setting.error(f"the value of {setting.key} contains a NUL character", hint=hint)
    return setting


def shown(value: object) -> str:
    """Return a value as TOML writes it, for messages."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        items = cast("list[object]", value)
        return f"[{', '.join(map(shown, items))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
