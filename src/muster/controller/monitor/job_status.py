"""What is known of a running job, gathered from the events of its agents: the source of every view of it.

The classes of a state take milliseconds to load, so they are loaded when a state is first made: while agents start.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from muster.controller.diagnosis.verdict import Verdict
from muster.controller.events import EventStream, HostChange
from muster.controller.links.link import AgentLink
from muster.controller.monitor.attempt_log import AttemptLog
from muster.controller.monitor.host_status import HostStatus
from muster.controller.monitor.rank_status import RankStatus, gpu_of
from muster.engines.engine import Launch
from muster.job import Job
from muster.jobs.location import birth
from muster.plan import Placement, Plan
from muster.shared.events import Exit, Gauges
from muster.shared.reports import Progress, Raised, SysExit

if TYPE_CHECKING:
    from muster.jobs.state import Failure, HostChangeState, HostPhase, HostRole, JobState, Moment, Phase, Report

_MOST_MOMENTS = 900
_FEWEST_MOMENTS = 60
_MOST_VALUES = 30_000
"""How much is kept for the charts: moments, and values over all ranks and hosts. A state is sent and written whole."""

_VALUES_OF_HOST = 5
"""Values that are kept of a host at each moment."""

_MOST_CHANGES = 200
_MOST_FAILURES = 50
"""Changes of hosts and failures of attempts that are kept, the newest ones."""

_BETWEEN_MOMENTS = 2.0
"""Seconds between two moments at first; when there are too many, every other one is dropped."""


class JobStatus:
    """The state of one job."""

    def __init__(self, job: Job, launch: Launch, begin: float) -> None:
        self.job = job
        self.engine = launch.name
        self.cancel = launch.engine.cancel_command(os.environ)
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
        self.attempts = AttemptLog()
        self._first: int | None = None
        """The first attempt of this controller; a job that was requeued had others before."""
        self._noticed: float | None = None
        """When a rank of the current attempt failed, its host was lost, or Muster began to end the ranks."""
        self._hosts = {agent.name: HostStatus(agent.name) for agent in launch.agents}
        self._host_losses = 0
        self._host_changes: list[HostChangeState] = []
        self._ranks: dict[int, RankStatus] = {}
        self._history: list[Moment] = []
        self._between = _BETWEEN_MOMENTS
        self._birth = birth(os.getpid())

    def take_over(self, earlier: JobState) -> None:
        """Continue the record of an earlier controller of the same job, which a scheduler has requeued."""
        why = earlier.sentence if earlier.phase == "ended" else ""
        self._attempt = earlier.attempt
        self.attempts.take_over(earlier.attempts, why or "its controller was killed", earlier.now)
        self._host_losses, self._host_changes = earlier.host_losses, list(earlier.host_changes)
        self.failures, self.reports = list(earlier.failures), list(earlier.reports)

    def attempt_begins(self, number: int, plan: Plan, swaps: Mapping[str, str]) -> None:
        """All ranks are new, on the hosts of this plan; `swaps` has the host that each spare replaced, by the spare."""
        self._first = number if self._first is None else self._first
        self.phase, self._attempt, self._noticed = "running", number, None
        self.hung_since, self.slow = None, ()
        self._ranks = {
            rank: RankStatus(placement.name, local, self._gpu(placement, local))
            for placement in plan.placements
            for local, rank in enumerate(placement.ranks)
        }
        used = {placement.name for placement in plan.placements}
        for name, host in self._hosts.items():
            if host.phase == "connecting" and name not in used:
                with self._noting(host):
                    host.enter("lost", "not reached yet", None)
            is_ready = host.phase in ("up", "silent")
            host.role = "ranks" if name in used else "spare" if is_ready else ""
        self.attempts.begins(number, plan, swaps, time.time())

    def attempt_lost(self, why: str) -> None:
        """Something ended the current attempt; only the first reason of an attempt counts."""
        self.attempts.lost(why, time.time() if self._noticed is None else self._noticed)

    def set_host(
        self,
        name: str,
        *,
        phase: HostPhase | None = None,
        role: HostRole | None = None,
        why: str | None = None,
        deadline: float | None = None,
    ) -> None:
        """Note what became of a host; None leaves a value as it is."""
        host = self._host(name)
        with self._noting(host):
            host.enter(host.phase if phase is None else phase, why, deadline)
        host.role = host.role if role is None else role

    @contextmanager
    def _noting(self, host: HostStatus) -> Generator[None]:
        """Note if a host is lost, returns, drains or is bad after what is done here."""
        before = host.phase
        yield
        has_returned = host.phase == "up" and before in ("lost", "returning", "draining", "bad")
        if host.phase != before and (has_returned or host.phase in ("lost", "draining", "bad")):
            from muster.jobs.state import HostChangeState

            change = HostChangeState(time=time.time(), host=host.name, state=host.phase, why=host.why)
            self._host_changes = [*self._host_changes[1 - _MOST_CHANGES :], change]

    def _host(self, name: str) -> HostStatus:
        return self._hosts.setdefault(name, HostStatus(name))

    def _gpu(self, placement: Placement, local_rank: int) -> int | None:
        facts = self._host(placement.name).facts
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
        self._notice()

    def _notice(self) -> None:
        """Something ends the current attempt; how, is known later."""
        self._noticed = time.time() if self._noticed is None else self._noticed

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
        self.failures = [*self.failures[1 - _MOST_FAILURES :], failure]
        self.attempt_lost(verdict.sentence)

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
        if event["first"]:
            rank.first_collective = link.our_time(event["time"])
            times = [other.first_collective for other in self._ranks.values()]
            known = [moment for moment in times if moment is not None]
            if len(known) == len(times):
                self._works(max(known))

    def _works(self, first_collective: float) -> None:
        """The last rank has finished its first collective."""
        self.attempts.works(first_collective)
        if self._attempt == self._first:
            self.phases["first collective"] = first_collective - self.begin

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
            if rank.phase == "failed":
                self._notice()

    def _on_gauges(self, link: AgentLink, event: Gauges) -> None:
        if event["host"]:  # under MPI one agent of each host reports
            self._host(link.name).gauges = event["host"]
        for number, gauges in event["ranks"].items():
            if int(number) in self._ranks:
                self._ranks[int(number)].gauges = gauges

    def _on_host_change(self, link: AgentLink, event: HostChange) -> None:
        host = self._host(link.name)
        self._host_losses += event["state"] == "lost" and host.phase != "lost"  # under MPI a host has several links
        with self._noting(host):
            host.on_change(event["state"], link.lost.why if link.lost is not None else "")
        for rank in self._ranks.values() if event["state"] == "lost" else ():
            if rank.host == link.name:
                rank.lost = True
                self._notice()

    def connected(self, links: Sequence[AgentLink]) -> None:
        """All hosts are up."""
        self.phase = "preparing"
        self.see(links)

    def see(self, links: Sequence[AgentLink]) -> None:
        """Note which hosts have answered."""
        for link in links:
            host = self._host(link.name)
            if link.facts and link.lost is None:
                host.facts = link.facts
                host.phase = "up" if host.phase == "connecting" else host.phase

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
            attempts=self.attempts.state(),
            host_losses=self._host_losses,
            host_changes=tuple(self._host_changes),
            phases=dict(self.phases),
            hung_since=self.hung_since if self.phase == "running" else None,
            slow=self.slow if self.phase == "running" else (),
            exit_code=self.exit_code,
            sentence=self.sentence,
            stopped_by=self.stopped_by,
            cancel=self.cancel,
            stuck=self.stuck,
        )
