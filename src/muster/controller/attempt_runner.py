"""Runs one attempt after the other on the hosts it is given, and stops their ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.diagnosis.independent_ranks import warn
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.events import EventStream
from muster.controller.monitor.job_files import JobFiles
from muster.controller.monitor.job_status import JobStatus
from muster.controller.monitor.observers import Observers
from muster.controller.preparation import Preparation
from muster.controller.prepare import shown_ranks
from muster.controller.requeue_watch import RequeueWatch
from muster.controller.summary import Timeline
from muster.errors import MusterError
from muster.job import Job
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import Plan
from muster.shared.wire import LAST_GRACE
from muster.text import count, tilde

GRACE_AFTER_LOSS = 1.0
"""Maximum grace period in seconds for the ranks of the other hosts when a host is lost and the job will restart."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a controller that the attempts of its job need."""

    job: Job
    agents: Agents
    events: EventStream
    status: JobStatus
    observers: Observers
    record: JobFiles
    preparation: Preparation
    screen: Screen
    logs: LogFiles
    folder: Path
    timeline: Timeline
    requeue: RequeueWatch
    """Knows whether the time limit of the scheduler is near."""


class AttemptRunner(ABC):
    """The attempts of one job."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._spec = parts.job.spec
        self._agents = parts.agents
        self._screen = parts.screen
        self._status = parts.status
        self.attempt: Attempt | None = None
        """The last attempt, if there was one."""
        self.number = parts.job.first_attempt
        """The number of the next attempt."""
        self.grace = self._spec.grace
        self.interrupt = False
        """Whether ranks get SIGINT first when they are stopped."""
        self.requeue = parts.requeue
        self._stuck: dict[str, list[int]] = {}
        """Processes that could not be killed, by host."""
        self._have_ended = False
        """Whether the last attempt was stopped, and no host that answered has anything left of it."""

    @property
    def is_running(self) -> bool:
        """Whether ranks run, or are being started."""
        return self.attempt is not None and not self.attempt.over.is_set()

    @property
    def stuck(self) -> Collection[str]:
        """The hosts with a process of the last attempt that could not be killed."""
        return self._stuck

    @abstractmethod
    def on_loss(self, host: str, why: str, *, ends_all: bool = False) -> None:
        """A host is lost, or it is up and cannot start or stop its ranks; `ends_all`: the launcher ends all others."""

    @abstractmethod
    def on_started(self) -> None:
        """All ranks of an attempt have been started."""

    async def try_once(self, plan: Plan, swaps: Mapping[str, str]) -> Verdict:
        """Start all ranks, wait until all have ended or one has failed, then end the rest.

        `swaps` has the host that each spare replaced, by the spare.
        """
        parts, number, is_first = self._parts, self.number, self.attempt is None
        self._keep(plan, is_first)
        parts.events.unsubscribe(self.attempt)
        only = self._shown(plan, is_first)
        attempt = self.attempt = Attempt(plan, number, parts.folder, self._screen, parts.logs, only)
        self.number += 1
        attempt.subscribe(parts.events, returns=self._spec.call is not None)
        attempt.is_expected = self.requeue.expects
        parts.observers.begin_attempt(plan, number, swaps)
        watching = parts.observers.watch(attempt)
        self._have_ended = False
        try:
            await self._agents.start(plan, number, self.on_loss)
            parts.timeline.note(f"attempt {number}: ranks started")
            if not attempt.losses:
                parts.observers.write()  # other machines see what --detach reports
                self._status.started()
                self.on_started()
            await attempt.over.wait()
        finally:
            watching.cancel()
        if not attempt.losses and not attempt.planned:
            await parts.observers.compare_calls(attempt)
        await self.stop_ranks()
        if is_first and attempt.first_collective is not None and self._spec.watch:
            parts.timeline.first_collective = attempt.first_collective - parts.timeline.begin
            self._status.phases["first collective"] = parts.timeline.first_collective
        return warn(attempt.verdict(), attempt.trained_alone, parts.job)

    def _shown(self, plan: Plan, is_first: bool) -> Collection[int] | None:
        """The ranks whose output is shown; the world may have become too small for those that the user chose."""
        try:
            return shown_ranks(plan, self._spec.only_ranks, self._spec.only_local_ranks)
        except MusterError:
            if is_first:
                raise
            return ()

    def _keep(self, plan: Plan, is_first: bool) -> None:
        """Write the plan to the job directory, and report the first one."""
        try:
            self._parts.record.keep(plan)
        except MusterError as error:
            if is_first:
                raise
            self._screen.warning(error.message)
        if is_first:
            spares = len(self._agents.usable) - len(plan.placements)
            beside = f" + {count(spares, 'spare')}" if spares > 0 else ""
            self._screen.info(
                f"{count(plan.world_size, 'rank')} on {count(len(plan.placements), 'host')}{beside}, "
                f"rendezvous at {plan.master_addr}:{plan.master_port}; logs in {tilde(self._parts.folder)}"
            )

    async def stop_ranks(self) -> None:
        """End everything that still runs on the remaining hosts."""
        if self._have_ended:
            return
        self._status.stopping()
        grace = self.grace
        if self.attempt is not None and (self.attempt.losses or self.attempt.drain):
            grace = min(grace, GRACE_AFTER_LOSS if self._spec.restarts else LAST_GRACE)
        self._stuck = await self._agents.stop(grace, self.on_loss, interrupt=self.interrupt)
        for host, pids in self._stuck.items():
            if host not in self._status.stuck:
                which = ", ".join(map(str, pids))
                self._screen.warning(f"{host}: could not kill process {which}, blocked in the kernel (disk or driver)")
        if self._stuck and self.attempt is not None:
            self.attempt.stuck, self._status.stuck = True, tuple(self._stuck)
        self._have_ended = not self._stuck
