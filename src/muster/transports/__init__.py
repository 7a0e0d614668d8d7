"""Transports: pure functions from hosts to the local command lines that bring agents up there."""

from __future__ import annotations

from muster.transports.command import Command
from muster.transports.engine import Dialled, Engine, Piped, Seat, Summons, leaders
from muster.transports.local import is_this_machine, local_command
from muster.transports.ssh import explain_ssh_failure, ssh_command

__all__ = [
    "Command",
    "Dialled",
    "Engine",
    "Piped",
    "Seat",
    "Summons",
    "explain_ssh_failure",
    "is_this_machine",
    "leaders",
    "local_command",
    "ssh_command",
]
