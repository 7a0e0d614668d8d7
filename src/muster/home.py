"""The directories of this user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from muster.errors import MusterError


def state_folder() -> Path:
    """The state directory of Muster: $XDG_STATE_HOME/muster, else ~/.local/state/muster.

    Relative paths in XDG_STATE_HOME and HOME are ignored: each working directory would have its own jobs.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.join(_home(), ".local", "state")) / "muster"


def _home() -> str:
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise MusterError(
            f"could not determine your home directory (HOME is not an absolute path, and user {os.getuid()} has no "
            "entry in the password database)",
            hint="set XDG_STATE_HOME to a directory you can write to",
        ) from None


def short_folder() -> Path:
    """A directory for sockets, whose paths must be short."""
    # Not $XDG_RUNTIME_DIR: systemd empties that when its user logs out, and a detached job keeps running.
    return Path(f"/tmp/muster-{os.getuid()}")


def make_short_folder() -> Path:
    """The same, made if need be, for this user alone; OSError if that is not possible."""
    folder = short_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    # /tmp is shared: whoever made this directory before us could read the job's output, and stop it.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(None, f"{folder} is not a directory of this user alone")
    return folder
