"""The command that started a job, kept in its directory so that `muster again` can repeat it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from muster.environment import SECRET_NAME
from muster.errors import MusterError, UsageError
from muster.jobs.kept_files import not_written, read_regular
from muster.spec import RunSpec
from muster.text import names

_FILE = "command.json"
_MOST_BYTES = 4 << 20

_OF_TERMINAL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|WINDOWID|DISPLAY|PS1|INVOCATION_ID|JOURNAL_STREAM|"
    r"(?:TERM|SSH|TMUX|STY|VTE|VSCODE|DBUS|XDG|KITTY|ITERM|COLORTERM)\w*"
)
"""Matches environment variables that belong to the terminal, not to the job."""


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """A command line of `muster run`, where it was typed, and changes to it."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The environment, without values that look secret."""
    secrets: tuple[str, ...] = ()
    """The names of variables that look secret, whose values are not kept."""
    args: tuple[str, ...] | None = None
    """The arguments of the script, if they replace those of `argv`."""
    without: tuple[str, ...] = ()
    """Hosts that are left out."""

    @classmethod
    def here(cls, argv: Sequence[str]) -> RunCommand:
        """A command line that is typed now."""
        own = {name: value for name, value in os.environ.items() if not _OF_TERMINAL.fullmatch(name)}
        secret = tuple(sorted(filter(SECRET_NAME.search, own)))
        env = {name: value for name, value in own.items() if name not in secret}
        return cls(argv=tuple(argv), cwd=_working_directory(), env=env, secrets=secret)

    def changed(self, spec: RunSpec) -> RunSpec:
        """The run that the command line describes, with the changes."""
        if self.args is not None:
            spec = replace(spec, args=self.args)
        for name in self.without:
            hosts = spec.hosts or ()
            left = tuple(host for host in hosts if name not in (host.name, host.destination))
            if len(left) == len(hosts):
                known = f"its hosts are {names([host.name for host in hosts])}" if hosts else "it named no hosts"
                raise UsageError(f"--without {name}: not a host of the job", hint=known)
            if not left:
                raise UsageError(f"--without {name}: no host is left", hint="start another job with `muster run`")
            spec = replace(spec, hosts=left)
        return spec

    def enter(self) -> list[str]:
        """Change to its directory and environment; returns the variables that were set then and are not set now."""
        try:
            os.chdir(self.cwd)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise MusterError(f"the working directory of the job, {self.cwd}: {why}") from None
        own = {
            name: value
            for name, value in os.environ.items()
            if _OF_TERMINAL.fullmatch(name) or SECRET_NAME.search(name)
        }
        os.environ.clear()
        os.environ.update({**self.env, **own, "PWD": self.cwd})
        return [name for name in self.secrets if name not in own]

    def write(self, folder: Path) -> None:
        """Write it to a job directory, for this user only; fails if nothing can be written there."""
        data = {**asdict(self), "argv": _without_secrets(self.argv)}
        try:
            descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "w") as file:
                json.dump(data, file)
        except OSError as error:
            raise not_written(folder, error) from None

    @classmethod
    def read(cls, folder: Path) -> RunCommand | None:
        """The command of the job in a directory; None if it was not started by `muster run`, or is damaged."""
        try:
            data: Any = json.loads(read_regular(folder / _FILE, _MOST_BYTES))
            args = data["args"]
            env = cast("dict[Any, Any]", data["env"])
            return cls(
                argv=_texts(data["argv"]),
                cwd=_texts([data["cwd"]])[0],
                env=dict(zip(_texts(list(env)), _texts(list(env.values())), strict=True)),
                secrets=_texts(data["secrets"]),
                args=None if args is None else _texts(args),
                without=_texts(data["without"]),
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in cast("list[object]", values)):
        raise TypeError
    return tuple(cast("list[str]", values))


def _without_secrets(argv: Sequence[str]) -> list[str]:
    """`--env TOKEN=abc` as `--env TOKEN`, which takes the value of the shell that repeats it."""
    kept: list[str] = []
    for word in argv:
        flag, equals, rest = word.partition("=") if word.startswith("--env=") else ("", "", word)
        is_value = bool(flag) or (kept[-1:] == ["--env"])
        name = rest.partition("=")[0]
        kept.append(f"{flag}{equals}{name}" if is_value and SECRET_NAME.search(name) else word)
    return kept


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
