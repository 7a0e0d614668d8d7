"""What was seen of one round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Struck:
    """When a fault hit, and when it was undone."""

    begin: float
    done: float = 0.0
    """When it was complete: to fill a disk that is in use may take many seconds on a busy machine."""
    end: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What `muster ps --json` says about the end of the job."""

    exit_code: int | None
    status: str
    rank: int | None = None
    """The rank that failed first."""
    host: str = ""
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One round, with times in seconds since 1970."""

    code: int | None
    """Exit code of `muster run`; None if it did not end in time."""
    ended: float
    """When it ended, or when waiting for it ended."""
    struck: tuple[Struck | None, ...]
    """For each fault of the plan; None if there was nothing to hit any more."""
    said: tuple[tuple[float, ...], ...]
    """For each rank, when it had printed each of its lines."""
    finished: tuple[bool, ...]
    """For each rank, whether its script came to its end."""
    logged: tuple[tuple[int, ...], ...]
    """For each rank, the numbers of its lines in the log."""
    gone: float | None
    """When no process of the job was left; None if some were there until the end of the round."""
    left: tuple[str, ...] = ()
    """The processes that were left."""
    verdict: Verdict | None = None
    unreadable: str = ""
    """Which command could not read the job directory, and what it printed."""
    second: str = ""
    """What happened to the other job; empty if nothing did."""
    dirty: tuple[str, ...] = ()
    """What else the job left in the lab."""
    output: str = ""
    """What `muster run` printed, without the lines of ranks."""
