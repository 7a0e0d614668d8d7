"""Transports: pure functions from a host to the local command line that starts an agent there."""

from __future__ import annotations

from muster.transports.command import Command
from muster.transports.local import is_this_machine, local_command
from muster.transports.ssh import explain_ssh_failure, ssh_command

__all__ = ["Command", "explain_ssh_failure", "is_this_machine", "local_command", "ssh_command"]
