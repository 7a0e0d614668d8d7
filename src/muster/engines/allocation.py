"""The hosts that a scheduler has allocated to the job that Muster runs in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.errors import HostError
from muster.hosts import Host
from muster.text import count


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The hosts of a scheduler's job; `str(allocation)` is its display form."""

    kind: str
    """What the scheduler's users call it: `Slurm allocation`, `PBS job`."""
    id: str
    """The job id in the scheduler's own commands: `4711`, `12.server`."""
    hosts: tuple[Host, ...]
    """Each host once; rank 0 runs on the first."""
    groups: tuple[int, ...] = ()
    """The group of each host in a heterogeneous job; empty for other jobs."""
    notes: tuple[str, ...] = ()
    """How the numbers of ranks and GPUs were determined; short sentences that are printed at the start."""
    job_id: str = ""
    """The id of Muster's own job, if `muster submit` has chosen it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}, {count(len(self.hosts), 'host')}"

    def has_all(self, hosts: Sequence[Host]) -> bool:
        """Whether all these hosts belong to the job."""
        return all(self._own(host) is not None for host in hosts)

    def pick(self, hosts: Sequence[Host] | None, nproc: int | None) -> tuple[Host, ...]:
        """All hosts, or those the user selected; the user's number of ranks takes precedence over the scheduler's."""
        if hosts is None:
            return tuple(host if nproc is None else replace(host, slots=None) for host in self.hosts)
        picked: list[Host] = []
        for host in hosts:
            given = self._own(host)
            if given is None:
                names = ", ".join(other.name for other in self.hosts)
                raise HostError(host.name, f"not part of {self} ({names})", hint="omit -H to use all its hosts")
            slots = host.slots if host.slots is not None or nproc is not None else given.slots
            picked.append(replace(given, slots=slots, gpus=host.gpus))
        return tuple(picked)

    def _own(self, host: Host) -> Host | None:
        """The host of the job with this name, with or without a domain in either name."""
        for own in self.hosts:
            if own.name in (host.name, host.name.partition(".")[0]) or host.name == own.name.partition(".")[0]:
                return own
        return None
