"""What a scheduler has given to the job that Muster runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.hosts import Host
from muster.text import count

_CALLED = {"slurm": "Slurm allocation", "pbs": "PBS job"}


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The hosts of one job of a scheduler; `str(allocation)` is how it is told on the screen."""

    engine: Literal["slurm", "pbs"]
    """The scheduler."""
    id: str
    """The job's name in the scheduler's own commands: `4711`, `12.server`."""
    hosts: tuple[Host, ...]
    """Each host once; the first is where rank 0 runs."""
    groups: tuple[int, ...] = ()
    """The group of each host in a heterogeneous Slurm job (for `srun --het-group`); empty where there are none."""
    notes: tuple[str, ...] = ()
    """What was worked out from what, a short sentence each; printed at the start."""

    def __str__(self) -> str:
        return f"{_CALLED[self.engine]} {self.id}, {count(len(self.hosts), 'host')}"
