"""Files of `--env-file`: environment variables in the format of `docker run --env-file`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from muster.errors import UsageError
from muster.user_file import read_user_file

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLE = "write NAME=VALUE, or NAME alone to copy its value from here"
_FORMAT = "name a text file with one NAME=VALUE or NAME per line"

_STDIN = "-"
"""Read from stdin instead of a file."""

_COMMAND_LIMIT = 60.0
"""Seconds for the command of a pipe, such as `pass show api`, which may ask for a passphrase first."""


@dataclass(frozen=True, kw_only=True)
class EnvFile:
    """The content of a file."""

    values: Mapping[str, str]
    copied: tuple[str, ...]
    """The names without a value, which is taken from the environment of Muster."""


def read_env_file(path: str, env: Mapping[str, str]) -> EnvFile:
    """Read a file; errors start with the file and the line.

    A line is NAME=VALUE, NAME alone for its value in `env`, empty, or a comment with `#` at the start. Values are
    literal, except that a pair of quotes around the whole value is removed.
    """
    values: dict[str, str] = {}
    copied: list[str] = []
    for number, line in enumerate(_lines(path), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        place = f"{path}:{number}"
        if not _NAME.fullmatch(name):
            hint = "remove `export`" if name.startswith("export ") else _EXAMPLE
            raise UsageError(f"{place}: `{name}` is not a valid name of an environment variable", hint=hint)
        if not equals:
            if name not in env:
                raise UsageError(f"{place}: {name} is not set here", hint=f"write {name}=VALUE, or remove the line")
            copied.append(name)
        if "\0" in value:
            raise UsageError(f"{place}: the value of {name} contains a NUL character", hint="remove it")
        values[name] = _unquoted(value) if equals else env[name]
    return EnvFile(values=values, copied=tuple(copied))


def check_is_kept(path: str) -> None:
    """UsageError for stdin, a descriptor or a pipe: a job that starts later could not read it again."""
    try:
        mode = 0 if path == _STDIN else os.stat(path).st_mode
    except (OSError, ValueError):
        return  # reading it reports why
    if not stat.S_ISREG(mode) or path.startswith(("/dev/", "/proc/")):
        raise UsageError(
            f"--env-file {path}: the job reads it when it starts, so it must be a file",
            hint="write the variables to a file that only you can read: `umask 077` first",
        )


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _lines(path: str) -> list[str]:
    try:
        if path == _STDIN:
            data = read_user_file(0, limit=_COMMAND_LIMIT)
        elif path.startswith("/dev/fd/"):  # of `<(command)`
            data = read_user_file(path, limit=_COMMAND_LIMIT)
        else:
            data = read_user_file(path)
        return data.decode("utf-8-sig").split("\n")  # not splitlines: a value may contain U+2028
    except FileNotFoundError:
        raise UsageError(f"--env-file {path}: file not found", hint=_FORMAT) from None
    except OSError as error:
        raise UsageError(f"--env-file {path}: could not read the file ({error.strerror})", hint=_FORMAT) from None
    except ValueError:  # bytes that are not UTF-8 inside the file, or a NUL in its name
        raise UsageError(f"--env-file {path}: not a text file", hint=_FORMAT) from None
