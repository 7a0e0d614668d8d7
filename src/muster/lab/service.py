"""What a lab can have on top of its hosts: Slurm, MPI, podman."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.lab.kinds import Kind

Run = Callable[..., subprocess.CompletedProcess[str]]
"""Runs a command inside a host, as `Lab.run` does."""


class Service(ABC):
    """Something that every host of a lab runs or can run."""

    title: str
    """How an error message calls it."""

    script: str
    """The file, beside this one, that each host runs when it boots, before it says that it is up."""

    programs: tuple[str, ...]
    """What this machine must have for it."""

    kinds: frozenset[Kind] = frozenset({"root"})
    """The kinds of lab that can have it."""

    daemons: frozenset[str] = frozenset()
    """The names of the processes that belong to it in an idle host."""

    def write(self, folder: Path, header: str = "") -> None:
        """Write the boot script, with a header of its own, to what is /run/muster-lab/boot in the hosts."""
        (folder / self.script).write_text(header + Path(__file__).with_name(self.script).read_text())

    @abstractmethod
    def wait(self, hosts: Sequence[str], run: Run) -> None:
        """Return when it works in these hosts, which have just booted; raise a LabError when it does not come."""
