"""The transport for this machine: the agent is a plain child."""

from __future__ import annotations

import socket
import sys

from muster.engines.command import Command
from muster.engines.container.container import Container
from muster.errors import UsageError
from muster.hosts import Host
from muster.shared import bootstrap


def local_command(host: Host, *, python: str | None = None, box: Container | None = None) -> Command:
    """Start the agent with the interpreter Muster runs under, or the one named by --python, or the image's."""
    if sys.platform != "linux":
        raise UsageError(
            f"ranks run on Linux, and this machine is {sys.platform}",
            hint="name Linux hosts: `muster run -H box train.py`",
        )
    if box is not None:
        return Command(host=host, argv=box.run((python or "python3", "-c", bootstrap.COMMAND)), over_ssh=False, box=box)
    return Command(host=host, argv=(python or sys.executable, "-c", bootstrap.COMMAND), over_ssh=False)


def is_this_machine(host: Host) -> bool:
    """Whether a host named by the user is the machine Muster runs on, so that no ssh is needed.

    A user or a port says how to log in, so those hosts are always logged in to.
    """
    if host.user or host.port:
        return False
    own = socket.gethostname()
    return host.name in ("localhost", "127.0.0.1", "::1", own, own.partition(".")[0])
