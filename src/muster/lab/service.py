"""Optional services of a lab: Slurm, MPI, podman."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.lab.kinds import Kind

Run = Callable[..., subprocess.CompletedProcess[str]]
"""Runs a command inside a host, as `Lab.run` does."""


class Service(ABC):
    """A service that every host of a lab runs or can run."""

    title: str
    """Its name in error messages."""

    script: str
    """The file, next to this one, that each host runs at boot before it reports that it is up."""

    programs: tuple[str, ...]
    """Programs that this machine must have."""

    kinds: frozenset[Kind] = frozenset({"root"})
    """The kinds of lab that can have it."""

    daemons: frozenset[str] = frozenset()
    """Names of its processes on an idle host."""

    def write(self, folder: Path, header: str = "") -> None:
        """Write the boot script, with a header, to the directory that is /run/muster-lab/boot on the hosts."""
        (folder / self.script).write_text(header + Path(__file__).with_name(self.script).read_text())

    @abstractmethod
    def wait(self, hosts: Sequence[str], run: Run) -> None:
        """Return when it works on these hosts, which have just booted; raise a LabError if it does not start."""
