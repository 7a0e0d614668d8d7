"""The state of a job as `muster ps`, `show`, `top`, the dashboard, JSON and the metrics present it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from muster.jobs.decode import decode

VERSION = 1
"""Raised when a field changes its meaning; readers ignore fields they do not know."""

_MOST_RANKS = 1 << 20
"""No job has more; a damaged file may say so."""

Phase = Literal["connecting", "preparing", "running", "stopping", "ended"]
RankPhase = Literal["starting", "running", "waiting", "hung", "stopped", "disk", "ended", "canceled", "failed", "lost"]
"""waiting: in a collective; hung: the cause of a reported hang; stopped: SIGSTOP or frozen; disk: uninterruptible (D);
ended: with exit code 0; canceled: ended by Muster."""

HostPhase = Literal["connecting", "up", "silent", "lost", "returning", "draining", "bad"]
"""silent: no message for 1.5 s; lost: given up, retried in the background; returning: it answers again and is being
checked; draining: it is about to go away; bad: its hardware failed, so it runs no ranks."""

HostRole = Literal["ranks", "spare", ""]


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU as its driver sees it; None where the driver does not say."""

    index: int
    name: str = ""
    use: float | None = None
    """0 to 1."""
    memory_used: int | None = None
    memory_total: int | None = None
    clock: int | None = None
    """MHz of the SMs now."""
    clock_max: int | None = None
    temperature: int | None = None
    throttled: str = ""
    """Why the driver throttles its clock; empty when it does not."""


@dataclass(frozen=True, kw_only=True)
class HostState:
    """One host of the job."""

    name: str
    state: HostPhase = "connecting"
    role: HostRole = ""
    """What it does for the job: it runs ranks, or it is ready to replace a lost host; empty if neither."""
    why: str = ""
    """Why it is lost, bad or draining."""
    deadline: float | None = None
    """When a draining host goes away, in seconds since 1970."""
    cpus: int = 0
    cpu_use: float | None = None
    """0 to 1 over all its CPUs."""
    load: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    disk_wait: float | None = None
    """Share of the time in which some task waited for a disk (0 to 1), where the kernel reports it."""
    network_in: float | None = None
    """Bytes per second over all interfaces but loopback."""
    network_out: float | None = None
    gpus: tuple[GpuState, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankState:
    """One rank of the job."""

    rank: int
    host: str
    local_rank: int
    gpu: int | None = None
    pid: int | None = None
    state: RankPhase = "starting"
    collectives: int = 0
    """How many have finished, over all process groups."""
    steps: int = 0
    """How many optimizer steps it has made."""
    step_rate: float | None = None
    """Steps per second lately; collectives per second where the script has no optimizer."""
    waiting: float | None = None
    """Share of the time lately in which it waited for other ranks (0 to 1)."""
    cpu: float | None = None
    """CPUs it uses, with its children."""
    memory: int | None = None
    """Bytes of memory of its own (RSS), with its children."""
    gpu_memory: int | None = None
    place: str = ""
    """`train.py:88 in step`, where its code was when it last reported; of a rank that failed, where it failed."""
    moved: float | None = None
    """When it last called or finished a collective or made a step, in seconds since 1970; None if that is unknown."""
    exit_code: int | None = None


HostUse = tuple[float | None, float | None, float | None, float | None, float | None]
"""What a host used: CPU, memory and GPU (each 0 to 1, the mean of its GPUs), bytes per second received and sent."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What is drawn over time."""

    time: float
    step_rate: float | None
    """Of the slowest rank."""
    waiting: Mapping[int, float]
    """By rank."""
    hosts: Mapping[str, HostUse] = field(default_factory=dict[str, HostUse])
    """By host."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Something Muster found while the job ran."""

    kind: Literal["hang", "straggler", "stacks"]
    time: float
    sentence: str
    ranks: tuple[int, ...] = ()
    """The ranks it names as the cause."""
    detail: str = ""
    """More lines for people."""
    stacks: Mapping[int, str] = field(default_factory=dict[int, str])
    """Each rank's stack as text, where they were taken."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How one attempt failed, as the screen showed it."""

    attempt: int
    time: float
    sentence: str
    """The first failure in one line."""
    detail: str = ""
    """The traceback, or the last lines of stderr."""
    lines: tuple[str, ...] = ()
    """Explanation, fix and what else happened, a line each."""
    rank: int | None = None
    """The rank that failed first; None if it was a host or Muster."""
    host: str = ""
    place: str = ""
    """`train.py:88`, where that rank failed, if it is known."""


@dataclass(frozen=True, kw_only=True)
class HostChangeState:
    """A host was lost, returned, drains or turned out to be bad."""

    time: float
    host: str
    state: HostPhase
    """up: it has returned."""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptState:
    """One start of all ranks."""

    number: int
    begin: float
    """When its ranks were started, in seconds since 1970."""
    world_size: int
    hosts: tuple[str, ...]
    """The hosts of its ranks, in the order of the ranks."""
    slots: tuple[int, ...] = ()
    """How many ranks each of these hosts ran."""
    lost_at: float | None = None
    """When what ended it was noticed."""
    lost_to: str = ""
    """What ended it, in one line; empty while it runs and if it succeeded."""
    swaps: Mapping[str, str] = field(default_factory=dict[str, str])
    """The host that each spare replaced at the beginning of this attempt, by the name of the spare."""
    recovery: float | None = None
    """Seconds from what ended the previous attempt to the first collective of this one; None if unknown."""

    def host_by_rank(self) -> dict[int, str]:
        """The host of each rank; empty if that is unknown."""
        found: dict[int, str] = {}
        for host, slots in zip(self.hosts, self.slots, strict=False):
            first = len(found)
            found.update(dict.fromkeys(range(first, min(first + slots, _MOST_RANKS)), host))
        return found


@dataclass(frozen=True, kw_only=True)
class JobState:
    """All that is known of one job now."""

    id: str
    command: str
    cwd: str
    engine: str
    begin: float
    now: float
    phase: Phase
    controller: int
    """The controller's process id."""
    host: str
    """The machine the controller runs on."""
    controller_birth: str = ""
    """Distinguishes the controller from a later process with the same id (`jobs.location.birth`)."""
    attempt: int = 0
    world_size: int = 0
    hosts: tuple[HostState, ...] = ()
    ranks: tuple[RankState, ...] = ()
    history: tuple[Moment, ...] = ()
    reports: tuple[Report, ...] = ()
    failures: tuple[Failure, ...] = ()
    """One for each attempt that failed, the last one last; of very many the newest."""
    attempts: tuple[AttemptState, ...] = ()
    """Every start of the ranks, the last one last; of very many the newest."""
    host_losses: int = 0
    """How often a host was lost."""
    host_changes: tuple[HostChangeState, ...] = ()
    """What happened to hosts, the last one last; of very many the newest."""
    phases: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds from `begin` to the end of each phase of the start: `connected`, `imported`, `first collective`."""
    hung_since: float | None = None
    """When the ranks stopped making progress; None while they make some."""
    slow: tuple[int, ...] = ()
    """The ranks that slow the job down now."""
    exit_code: int | None = None
    sentence: str = ""
    """How it ended, or what it is waiting for."""
    stopped_by: str = ""
    """What stopped it from outside: `Ctrl-C`, `muster stop`; empty if nothing did."""
    cancel: str = ""
    """The scheduler's command that ends it from any host: `qdel 12.server`; empty outside a scheduler's job."""
    stuck: tuple[str, ...] = ()
    """Hosts on which a process of it could not be ended, because the kernel holds it."""

    def as_data(self) -> dict[str, Any]:
        """The state as JSON can hold it; what it holds is shared, not copied (asdict took 0.3 s for 64 ranks)."""
        return {
            "version": VERSION,
            **vars(self),
            "hosts": [{**vars(host), "gpus": [vars(gpu) for gpu in host.gpus]} for host in self.hosts],
            "ranks": [vars(rank) for rank in self.ranks],
            "history": [vars(moment) for moment in self.history],
            "reports": [vars(report) for report in self.reports],
            "failures": [vars(failure) for failure in self.failures],
            "attempts": [vars(attempt) for attempt in self.attempts],
            "host_changes": [vars(change) for change in self.host_changes],
        }

    def cut(self, *, since: float | None = None, stacks: bool = True) -> JobState:
        """The state with the newer part of its history only, and without stacks if they are not wanted."""
        history = self.history if since is None else tuple(moment for moment in self.history if moment.time > since)
        reports = self.reports if stacks else tuple(replace(report, stacks={}) for report in self.reports)
        return replace(self, history=history, reports=reports)


def from_data(data: object) -> JobState:
    """The state that `as_data` made, from this or another version of Muster; ValueError if it is not one."""
    return decode(JobState, data)
