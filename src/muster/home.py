"""The directories of this user."""

from __future__ import annotations

import os
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
