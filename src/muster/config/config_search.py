"""Finds configuration files, and refuses those that another user can change: options such as --python run code.

Every command that starts ranks searches, so this module imports little.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from muster.errors import UsageError

VARIABLE = "MUSTER_CONFIG"
"""The environment variable with the project file to use instead of searching for one; empty for none."""

_MOST_BYTES = 1 << 20


def find(cwd: str, env: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return path and content of the project file and of the user file, as far as they exist."""
    found = (_project_file(cwd, env), _read(user_path(env), cwd))
    return [file for file in found if file is not None]


def user_path(env: Mapping[str, str]) -> str:
    """Return the path of the user file."""
    base = env.get("XDG_CONFIG_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "muster", "config.toml")


def is_pyproject(path: str) -> bool:
    """Return whether the configuration is the table [tool.muster] of this file."""
    return os.path.basename(path) == "pyproject.toml"


def shown_path(path: str, cwd: str) -> str:
    """Return a path for messages: relative if below the working directory, else with `~` for the home directory."""
    for base, shown in ((cwd, ""), (os.path.expanduser("~"), "~/")):
        if path.startswith(base.rstrip("/") + "/"):
            return shown + path[len(base.rstrip("/")) + 1 :]
    return path


def _project_file(cwd: str, env: Mapping[str, str]) -> tuple[str, bytes] | None:
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
        if directory in (parent, home):
            return None
        directory = parent


def _chosen_file(path: str, cwd: str) -> tuple[str, bytes]:
    file = _read(os.path.join(cwd, os.path.expanduser(path)), cwd, trusted=True)
    if file is None:
        raise UsageError(f"{VARIABLE}={path}: no configuration there", hint=f"unset {VARIABLE}, or name a muster.toml")
    return file


def _read(path: str, cwd: str, *, trusted: bool = False) -> tuple[str, bytes] | None:
    """Read a file if it exists; a pyproject.toml only if it has a [tool.muster]."""
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if is_pyproject(path):
            return None
        label = shown_path(path, cwd)
        raise UsageError(
            f"{label}: could not read the file ({error.strerror})", hint=_ignore("make it readable", path)
        ) from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return None
        data = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if is_pyproject(path) and b"tool.muster" not in data:
        return None
    label = shown_path(path, cwd)
    if not trusted:
        _check_trust(path, label, (os.lstat(path), about))
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{label}: larger than {_MOST_BYTES >> 20} MB", hint=_ignore("make it smaller", path))
    return path, data


def _check_trust(path: str, label: str, states: tuple[os.stat_result, os.stat_result]) -> None:
    """Refuse a file that another user owns or can change, or a symbolic link of another user; root is trusted."""
    link, about = states
    other = next((state.st_uid for state in states if state.st_uid not in (os.getuid(), 0)), None)
    if other is not None:
        what = "it is a link that belongs to" if stat.S_ISLNK(link.st_mode) else "it belongs to"
        raise UsageError(
            f"{label}: refused, because {what} {_owner(other)} and can run commands as you",
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


def _ignore(fix: str, path: str) -> str:
    return f"{fix}, or ignore it with an empty {VARIABLE}=" if os.path.basename(path) == "muster.toml" else fix
