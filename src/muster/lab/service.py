"""What a lab can have on top of its hosts: Slurm, MPI, podman."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from muster.lab.kinds import Kind

BOOT_FILES = "/run/muster-lab/boot"
"""Where a host finds what `Service.write` wrote; it runs the scripts (*.sh) there before it says that it is up."""


class Run(Protocol):
    """Runs a command inside a host, as `Lab.run` does."""

    def __call__(self, host: str, argv: Sequence[str], *, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run it to its end, at most `timeout` seconds long."""
        ...


class Service(ABC):
    """Something that every host of a lab runs or can run."""

    title: str
    """How an error message calls it."""

    script: str
    """The file, beside this one, that each host runs when it boots."""

    programs: tuple[str, ...]
    """What this machine must have for it."""

    kinds: frozenset[Kind] = frozenset({"root"})
    """The kinds of lab that can have it."""

    daemons: frozenset[str] = frozenset()
    """The names of the processes that belong to it in an idle host."""

    def write(self, folder: Path, header: str = "") -> None:
        """Write the boot script, behind a header of its own."""
        (folder / self.script).write_text(header + Path(__file__).with_name(self.script).read_text())

    @abstractmethod
    def wait(self, hosts: Sequence[str], run: Run) -> None:
        """Return when it works in these hosts, which have just booted; raise a LabError when it does not come."""
