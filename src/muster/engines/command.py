"""A local command line that gives a host its agent."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from muster.engines.container.container import Container
from muster.hosts import Host


@dataclass(frozen=True, kw_only=True)
class Command:
    """What is started for one host: a child process whose stdin and stdout are the channel to its agent."""

    host: Host
    argv: tuple[str, ...]
    over_ssh: bool
    box: Container | None = None
    """The container the agent runs in."""

    def __str__(self) -> str:
        return shlex.join(self.argv)
