"""The hint for a host that exists only in a running lab (`muster lab up`)."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from muster.home import state_folder

_SSH_CONFIG = "lab.ssh_config"
"""In the state directory: a link to the ssh configuration of the user's lab, which dangles when no lab is up."""


def leave_ssh_config(path: str) -> None:
    """Record the ssh configuration of a lab that has just started; it is removed with the lab, however that ends."""
    link = state_folder() / _SSH_CONFIG
    link.unlink(missing_ok=True)
    link.symlink_to(path)


def lab_hint(host: str) -> str | None:
    """How to reach a host of the user's running lab; None if no lab with this host is up."""
    link = state_folder() / _SSH_CONFIG
    try:
        if link.stat().st_uid != os.getuid():  # in /tmp, somebody may have created what the lab has removed
            return None
        config = link.read_text()
    except OSError:
        return None
    if f"Host {host}\n" not in config:
        return None
    return f"this name exists only inside your lab; run the command there: `muster lab exec h1 {_command(sys.argv)}`"


def _command(argv: Sequence[str]) -> str:
    """The command line of this process, as the user typed it."""
    program = os.path.basename(argv[0])
    return shlex.join(["muster", *argv[1:]]) if program in ("muster", "__main__.py") else shlex.join(["python", *argv])
