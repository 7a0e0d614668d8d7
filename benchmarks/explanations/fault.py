"""A failure of the catalog that ends a running job: how to inject it, and the expected explanation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster.lab import Lab

Change = Callable[[Lab], None]


def nothing(lab: Lab) -> None:
    """No change of the hosts, for faults of the script alone."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which a job can fail."""

    row: int
    """Its row in the catalog, or 0."""
    title: str
    mode: str
    """The first argument of the script."""
    script: str = "script.py"
    culprit: int = 1
    hosts: str = "h2:3"
    torch: bool = True
    before: Change = nothing
    """Change of the hosts before the job."""
    during: Change = nothing
    """Change of the hosts when all ranks are running."""
    after: Change = nothing
    named: str = r"rank {culprit} on h2 failed first"
    """Regular expression for the first line of the verdict."""
    why: str = ""
    """Regular expression for the explanation; empty if there must be none."""
    fix: str = ""
    """Regular expression for the fix."""

    @property
    def name(self) -> str:
        """`46 memory limit, rank 1`."""
        return f"{self.row} {self.title}, rank {self.culprit}"
