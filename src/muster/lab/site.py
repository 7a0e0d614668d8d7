"""What a lab needs from the hosts it is made of, whichever way they are made."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


class Site(Protocol):
    """The hosts of one lab."""

    folder: Path
    """Keys, configuration and logs of the lab; removed when its owner is gone."""

    addresses: dict[str, str]
    """The address of each host."""

    process_type: type[subprocess.Popen[Any]]
    """The Popen that fits what `enter_argv` starts."""

    def open(self) -> None:
        """Make all that the hosts have in common."""
        ...

    def start(self, names: Sequence[str]) -> None:
        """Bring hosts up; they answer ssh when this returns."""
        ...

    def kill(self, name: str) -> None:
        """End a host and everything in it, if it still runs."""
        ...

    def close(self) -> None:
        """End all hosts and remove the folder."""
        ...

    def running(self, name: str) -> bool:
        """Whether a host is up."""
        ...

    def init(self, name: str) -> int:
        """The process that holds a running host together."""
        ...

    def pids(self, name: str) -> list[int]:
        """Every living process of a running host, as numbered outside."""
        ...

    def ssh_argv(self) -> list[str]:
        """The command line that reaches every host from the owner."""
        ...

    def enter_argv(self, name: str) -> list[str]:
        """The command line that runs what follows it inside a host."""
        ...
