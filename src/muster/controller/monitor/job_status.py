"""What is known of a running job, gathered from the events of its agents: the source of every view of it.

The classes of a state take milliseconds to load, so they are loaded when a state is first made: while agents start.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from muster.controller.diagnosis.verdict import Verdict
from muster.controller.events import EventStream, HostChange
from muster.controller.links.link import AgentLink
from muster.engines.engine import Launch
from muster.job import Job
from muster.jobs.location import birth
from muster.plan import Placement, Plan
from muster.shared.events import Exit, Gauges, HostGauges, RankGauges, Up
from muster.shared.reports import Progress, Raised, SysExit

if TYPE_CHECKING:
    from muster.jobs.state import Failure, HostState, HostUse, JobState, Moment, Phase, RankPhase, RankState, Report

_MOST_MOMENTS = 900
_FEWEST_MOMENTS = 60
_MOST_VALUES = 30_000
"""How much is kept for the charts: moments, and values over all ranks and hosts. A state is sent and written whole."""

_VALUES_OF_HOST = 5
"""Values that are kept of a host at each moment."""

_BETWEEN_MOMENTS = 2.0
"""Seconds between two moments at first; when there are too many, every other one is dropped."""

_LATELY = 10.0
"""Seconds over which a step rate is measured."""

_SHORTEST = 0.5
"""Seconds below which no rate is measured: one step more or less would change it too much."""

_OVERDUE = 2.5
"""Seconds after which a rank that reports no progress has made none; it reports every second."""

_KERNEL_STATES: dict[str, RankPhase] = {"T": "stopped", "t": "stopped", "D": "disk"}
"""Process states of the kernel that are shown to people."""


class _Host:
    """What is known of one host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase: Literal["connecting", "up", "silent", "lost"] = "connecting"
        self.facts: Up | None = None
        self.gauges: HostGauges = {}

    def state(self) -> HostState:
        from muster.jobs.state import GpuState, HostState

        cpus = self.facts["cpus"] if self.facts is not None else 0
        gpus = tuple(GpuState(**gpu) for gpu in self.gauges.get("gpus", ()))
        return replace(HostState(name=self.name, state=self.phase, cpus=cpus), **{**self.gauges, "gpus": gpus})

    def use(self) -> HostUse:
        """What it uses now, for the charts."""
        gauges = self.gauges
        gpus = [use for gpu in gauges.get("gpus", ()) if (use := gpu.get("use")) is not None]
        total = gauges.get("memory_total")
        received, sent = gauges.get("network_in"), gauges.get("network_out")
        return (
            _rounded(gauges.get("cpu_use")),
            _rounded(gauges.get("memory_used", 0) / total if total else None),
            _rounded(sum(gpus) / len(gpus) if gpus else None),
            None if received is None else round(received),
            None if sent is None else round(sent),
        )


class _Rank:
    """What the events say about one rank."""

    def __init__(self, host: str, local_rank: int, gpu: int | None) -> None:
        self.host = host
        self.local_rank = local_rank
        self.gpu = gpu
        self.progress: Progress | None = None
        self.gauges: RankGauges | None = None
        self._counts: deque[tuple[float, int]] = deque()
        """How far it was at which time lately, by the clock of its host."""
        self._heard = 0.0
        """When its last progress arrived, by our clock."""
        self._counts_steps = False
        self.first_collective: float | None = None
        """When it had finished its first collective, by our clock, in seconds since 1970."""
        self.place = ""
        self.moved: float | None = None
        """When it last made progress, by our clock, in seconds since 1970."""
        self.failed_at = ""
        """Where it raised an exception or called sys.exit."""
        self.raised: float | None = None
        """When it raised an exception, by the clock of its host."""
        self.exit_status: int | None = None
        self.ended_by_us = False
        self.started = False
        self.lost = False
        self.is_hung = False

    def on_progress(self, event: Progress) -> None:
        self.progress = event
        self.place = event.get("place") or self.place
        steps = event.get("steps", 0)
        if bool(steps) != self._counts_steps:
            self._counts_steps = bool(steps)
            self._counts.clear()
        # Not by our clock: on a busy machine messages arrive late and then all at once.
        now, self._heard = event["time"], time.monotonic()
        self._counts.append((now, steps or event["done"]))
        while now - self._counts[0][0] > _LATELY and len(self._counts) > 2:
            self._counts.popleft()

    def rate(self) -> float | None:
        """Optimizer steps per second lately, or collectives in a script that has no optimizer."""
        if len(self._counts) < 2:
            return None
        (first, before), (last, count) = self._counts[0], self._counts[-1]
        silent = time.monotonic() - self._heard
        if silent > _LATELY:
            return 0.0
        span = last - first + (silent if silent > _OVERDUE else 0.0)
        return (count - before) / span if span >= _SHORTEST else None

    @property
    def phase(self) -> RankPhase:
        if self.exit_status is not None:
            return "canceled" if self.ended_by_us else "ended" if self.exit_status == 0 else "failed"
        if self.lost:
            return "lost"
        if not self.started:
            return "starting"
        kernel = _KERNEL_STATES.get(self.gauges["state"]) if self.gauges is not None else None
        if kernel is not None:
            return kernel
        if self.is_hung:
            return "hung"
        groups = self.progress.get("groups", {}) if self.progress is not None else {}
        return "waiting" if any(begun > done for begun, done in groups.values()) else "running"

    def state(self, rank: int) -> RankState:
        from muster.jobs.state import RankState

        status, progress, gauges = self.exit_status, self.progress, self.gauges
        return RankState(
            rank=rank,
            host=self.host,
            local_rank=self.local_rank,
            gpu=self.gpu,
            pid=gauges["pid"] if gauges else None,
            state=self.phase,
            collectives=progress["done"] if progress else 0,
            steps=progress.get("steps", 0) if progress else 0,
            step_rate=None if self.exit_status is not None else self.rate(),
            waiting=progress.get("waiting") if progress else None,
            cpu=gauges["cpu"] if gauges else None,
            memory=gauges["memory"] if gauges else None,
            gpu_memory=gauges["gpu_memory"] if gauges else None,
            place=(self.phase == "failed" and self.failed_at) or self.place,
            moved=self.moved,
            exit_code=None if status is None else 128 - status if status < 0 else status,
        )


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def gpu_of(chosen: Sequence[int] | None, visible: str | None, count: int, local_rank: int) -> int | None:
    """The GPU of a rank by the number its driver gives it; None where it has none or it is unknown.

    `chosen` are those of `-H host:0,2`, which count what the host's CUDA_VISIBLE_DEVICES shows, if that is set.
    """
    shown = [part.strip() for part in visible.split(",")] if visible is not None else [str(n) for n in range(count)]
    ours = [shown[gpu] for gpu in chosen if gpu < len(shown)] if chosen else shown
    return int(ours[local_rank]) if local_rank < len(ours) and ours[local_rank].isdigit() else None


class JobStatus:
    """The state of one job."""

    def __init__(self, job: Job, launch: Launch, begin: float) -> None:
        self.job = job
        self.engine = launch.name
        self.begin = begin
        self.phase: Phase = "connecting"
        self.sentence = ""
        self.exit_code: int | None = None
        self.stopped_by = ""
        self.stuck: tuple[str, ...] = ()
        self.on_started: Callable[[], None] | None = None
        """Called once, when all ranks have been started."""
        self.reports: list[Report] = []
        self.failures: list[Failure] = []
        self.phases: dict[str, float] = {}
        """Seconds from the command to the end of each phase of the start."""
        self.hung_since: float | None = None
        self.slow: tuple[int, ...] = ()
        """The ranks that slow the job down now."""
        self._attempt = 0
        self._hosts = {agent.name: _Host(agent.name) for agent in launch.agents}
        self._ranks: dict[int, _Rank] = {}
        self._history: list[Moment] = []
        self._between = _BETWEEN_MOMENTS
        self._birth = birth(os.getpid())

    def begin_attempt(self, plan: Plan, number: int) -> None:
        """All ranks are new."""
        self.phase, self._attempt = "running", number
        self.hung_since, self.slow = None, ()
        self._ranks = {
            rank: _Rank(placement.name, local, self._gpu(placement, local))
            for placement in plan.placements
            for local, rank in enumerate(placement.ranks)
        }

    def _gpu(self, placement: Placement, local_rank: int) -> int | None:
        facts = self._hosts[placement.name].facts
        if facts is None:
            return None
        visible = self.job.spec.env.get("CUDA_VISIBLE_DEVICES", facts["visible"])
        return gpu_of(placement.host.gpus, visible, facts["gpus"], local_rank)

    def started(self) -> None:
        """All ranks of an attempt have been started."""
        for rank in self._ranks.values():
            rank.started = True
        on_started, self.on_started = self.on_started, None
        if on_started is not None:
            on_started()

    def stopping(self) -> None:
        """Whatever still runs is being ended."""
        if self.phase != "ended":
            self.phase = "stopping"

    def failed(self, verdict: Verdict) -> None:
        """Keep how an attempt failed, for `muster show` and the dashboard."""
        from muster.jobs.state import Failure

        first = verdict.first
        failure = Failure(
            attempt=self._attempt,
            time=time.time(),
            sentence=verdict.sentence,
            detail=verdict.detail,
            lines=verdict.lines,
        )
        if first is not None:
            failure = replace(failure, rank=first.rank, host=first.host, place=first.place)
        self.failures.append(failure)

    def ended(self, exit_code: int, sentence: str) -> None:
        """Nothing of the job is left."""
        self.phase, self.exit_code, self.sentence = "ended", exit_code, sentence

    def subscribe(self, events: EventStream, observer: str) -> None:
        """Take the events of the job from now on."""
        events.subscribe(Progress, self._on_progress, observer=observer)
        events.subscribe(Raised, self._on_failure, observer=observer)
        events.subscribe(SysExit, self._on_failure, observer=observer)
        events.subscribe(Exit, self._on_exit, observer=observer)
        events.subscribe(Gauges, self._on_gauges, observer=observer)
        events.subscribe(HostChange, self._on_host_change, observer=observer)

    def _on_progress(self, link: AgentLink, event: Progress) -> None:
        rank = self._ranks.get(event["rank"])
        if rank is None:
            return
        rank.on_progress(event)
        rank.moved = max(rank.moved or 0.0, link.our_time(event.get("moved", event["time"])))
        if event["first"] and self._attempt == 0:
            rank.first_collective = link.our_time(event["time"])
            times = [other.first_collective for other in self._ranks.values()]
            known = [moment for moment in times if moment is not None]
            if len(known) == len(times):  # the last of them ends the start
                self.phases["first collective"] = max(known) - self.begin

    def _on_failure(self, link: AgentLink, event: Raised | SysExit) -> None:
        if event["rank"] in self._ranks:
            rank = self._ranks[event["rank"]]
            rank.failed_at = event.get("place", "")
            rank.raised = event["time"] if event["t"] == "exception" else None

    def _on_exit(self, link: AgentLink, event: Exit) -> None:
        rank = self._ranks.get(event["rank"])
        if rank is not None:
            # As in the verdict: an exception is older than the exit it leads to, and would have led to exit code 1.
            is_ended = rank.raised is not None and event["stopped_at"] is not None and event["status"] < 0
            rank.exit_status = 1 if is_ended else event["status"]
            when = event["time"] if rank.raised is None else rank.raised
            rank.ended_by_us = event["stopped_at"] is not None and when >= event["stopped_at"]

    def _on_gauges(self, link: AgentLink, event: Gauges) -> None:
        if event["host"]:  # under MPI one agent of each host reports
            self._hosts[link.name].gauges = event["host"]
        for number, gauges in event["ranks"].items():
            if int(number) in self._ranks:
                self._ranks[int(number)].gauges = gauges

    def _on_host_change(self, link: AgentLink, event: HostChange) -> None:
        self._hosts[link.name].phase = event["state"]
        for rank in self._ranks.values():
            rank.lost = rank.lost or (event["state"] == "lost" and rank.host == link.name)

    def connected(self, links: Sequence[AgentLink]) -> None:
        """All hosts are up."""
        self.phase = "preparing"
        self.see(links)

    def see(self, links: Sequence[AgentLink]) -> None:
        """Note which hosts have answered."""
        for link in links:
            host = self._hosts[link.name]
            if link.facts and host.phase == "connecting":
                host.phase, host.facts = "up", link.facts

    def tick(self, waiting_for: str = "") -> None:
        """Keep the history, and what is waited for; to be called about every second."""
        if self.phase != "ended":
            self.sentence = waiting_for
        now = time.time()
        if self.phase == "running" and (not self._history or now - self._history[-1].time >= self._between):
            from muster.jobs.state import Moment

            states = [rank.state(number) for number, rank in self._ranks.items()]
            rates = [state.step_rate for state in states if state.step_rate is not None]
            waiting = {state.rank: round(state.waiting, 3) for state in states if state.waiting is not None}
            hosts = {host.name: host.use() for host in self._hosts.values() if host.gauges}
            self._history.append(Moment(time=now, step_rate=min(rates, default=None), waiting=waiting, hosts=hosts))
            values = len(self._ranks) + _VALUES_OF_HOST * len(self._hosts)
            if len(self._history) > max(_FEWEST_MOMENTS, min(_MOST_MOMENTS, _MOST_VALUES // values)):
                self._history = self._history[::2]
                self._between *= 2

    def _mark_hung(self) -> None:
        """Mark the ranks that the report of the current hang names."""
        report = next((report for report in reversed(self.reports) if report.kind == "hang"), None)
        hung = report.ranks if report is not None and self.hung_since is not None and self.phase == "running" else ()
        for number, rank in self._ranks.items():
            rank.is_hung = number in hung

    def state(self, *, history: bool = True) -> JobState:
        """All of it, as it is now."""
        from muster.jobs.state import JobState

        self._mark_hung()
        return JobState(
            id=self.job.id,
            command=self.job.spec.command,
            cwd=self.job.spec.cwd,
            engine=self.engine,
            begin=self.begin,
            now=time.time(),
            phase=self.phase,
            controller=os.getpid(),
            controller_birth=self._birth,
            host=socket.gethostname(),
            attempt=self._attempt,
            world_size=len(self._ranks),
            hosts=tuple(host.state() for host in self._hosts.values()),
            ranks=tuple(rank.state(number) for number, rank in self._ranks.items()),
            history=tuple(self._history) if history else (),
            reports=tuple(self.reports),
            failures=tuple(self.failures),
            phases=dict(self.phases),
            hung_since=self.hung_since if self.phase == "running" else None,
            slow=self.slow if self.phase == "running" else (),
            exit_code=self.exit_code,
            sentence=self.sentence,
            stopped_by=self.stopped_by,
            stuck=self.stuck,
        )
