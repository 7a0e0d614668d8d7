"""A failure of the catalogue that ends a running job: how it is made, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster.lab import Lab

Change = Callable[[Lab], None]


def nothing(lab: Lab) -> None:
    """What is done to the hosts where the script alone is at fault."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which a job can fail."""

    row: int
    """Of the catalogue; 0 where it has none."""
    title: str
    mode: str
    """The first argument of the script."""
    script: str = "script.py"
    culprit: int = 1
    hosts: str = "h2:3"
    torch: bool = True
    before: Change = nothing
    """Done to the hosts before the job."""
    during: Change = nothing
    """Done to them when all ranks are there."""
    after: Change = nothing
    named: str = r"rank {culprit} on h2 failed first"
    """In the first line of the verdict."""
    why: str = ""
    """In the sentence that explains it; empty where none must come."""
    fix: str = ""
    """In the line that says what to do."""

    @property
    def name(self) -> str:
        """`46 memory limit, rank 1`."""
        return f"{self.row} {self.title}, rank {self.culprit}"
