"""The loop over attempts: runs the ranks on the usable hosts, and again on others when hosts are lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.diagnosis.independent_ranks import warn
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.events import EventStream
from muster.controller.host_pool import Member, Seating, Shortage, what_changes
from muster.controller.host_roster import HostRoster
from muster.controller.links.link import AgentLink
from muster.controller.monitor.job_files import JobFiles
from muster.controller.monitor.job_status import JobStatus
from muster.controller.monitor.observers import Observers
from muster.controller.preparation import Preparation
from muster.controller.prepare import shown_ranks
from muster.controller.rendezvous import another_port, meet
from muster.controller.requeue_watch import RequeueWatch
from muster.controller.restart_budget import RestartBudget
from muster.controller.summary import Timeline, show_failure
from muster.errors import HostError, MusterError
from muster.job import Job
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import Plan
from muster.shared.wire import LAST_GRACE
from muster.text import count, cut, names, tilde

if TYPE_CHECKING:
    from muster.jobs.state import HostPhase

WAIT_FOR_RETURN = 300.0
"""Seconds to wait for lost hosts to return when the others are too few to continue."""

REPAIR_LIMIT = 20.0
"""Seconds to wait for a new zygote on a host whose agent is up, before the job continues with fewer hosts."""

GRACE_AFTER_LOSS = 1.0
"""Maximum grace period in seconds for the ranks of the other hosts when a host is lost and the job will restart."""

_LONGEST_REASON = 300
"""Maximum number of characters of each sentence in MUSTER_LOST."""


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


class Recovery:
    """The attempts of one job and the hosts they use."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._spec = parts.job.spec
        self._agents = parts.agents
        self._screen = parts.screen
        self._status = parts.status
        self.roster = HostRoster(
            parts.job, parts.agents, parts.status, parts.screen, parts.preparation, self._plan_growth
        )
        self.attempt: Attempt | None = None
        self.number = parts.job.first_attempt
        """The number of the next attempt."""
        self.waiting_for: Callable[[], str] | None = None
        """What the job waits for while no ranks run, for the status line and `muster ps`."""
        self.grace = self._spec.grace
        self.interrupt = False
        """Whether ranks get SIGINT first when they are stopped."""
        self.signals: Collection[signal.Signals] = ()
        """The signals that ranks have received from outside."""
        self.requeue: RequeueWatch | None = None
        """Knows whether the time limit of the scheduler is near."""
        self.after_failure: list[Callable[[Attempt, Verdict], None]] = []
        """Called when an attempt has failed, the last one too; may retire hosts before those of the next are chosen."""
        self._met: list[AgentLink] = []
        """The agents of the last attempt, which have found an address."""
        self._lost: tuple[str, ...] = ()
        self._stuck: dict[str, list[int]] = {}
        """Processes that could not be killed, by host."""
        self._budget = RestartBudget(limit=self._spec.restarts)
        self._growing: asyncio.TimerHandle | None = None

    # --- the hosts ------------------------------------------------------------------------------------------

    @property
    def is_elastic(self) -> bool:
        """Whether the job can continue without some of its hosts."""
        return bool(self._spec.spares or self._spec.min_hosts)

    @property
    def members(self) -> Sequence[Member]:
        """All hosts of the job, as they are now."""
        return self.roster.members

    def first_plan(self) -> Plan:
        """The plan of the first attempt, without an address; hosts that are not up are replaced or left out."""
        found = self.roster.next()
        if isinstance(found, Shortage):
            raise MusterError(f"lost {names(found.missing)}, and no spare is left")
        plan = self.roster.seat(found)
        absent = self.roster.away
        if absent:
            changes = what_changes(found, replace(plan, placements=()), 0, None)
            changes = changes or f"{plan.world_size} of {count(self.roster.whole_size, 'rank')}"
            self._screen.warning(f"starting without {names(absent)}: {changes}")
        for name in absent:
            self.roster.expect(name)
        return plan

    def retire(self, host: str, why: str, *, phase: HostPhase = "bad") -> None:
        """Run no ranks on this host in later attempts, although its agent may be up."""
        self.roster.retire(host, why, phase)

    def restore(self, host: str) -> None:
        """Use a retired host again, if its agent is up."""
        self.roster.restore(host)

    @property
    def stuck(self) -> Collection[str]:
        """The hosts with a process of the last attempt that could not be killed."""
        return self._stuck

    def can_replace(self, host: str) -> bool:
        """Whether another attempt could run without this host."""
        return isinstance(self.roster.next(without=[host]), Seating)

    def replace(self, host: str, why: str, *, phase: HostPhase = "bad") -> bool:
        """Retire a host and move its ranks to another one, in a restart that --restarts does not count.

        False if the job cannot continue without it; then nothing changes.
        """
        if not self.can_replace(host):
            return False
        self.retire(host, why, phase=phase)
        if self.attempt is not None and self.roster.is_used(host):
            self.attempt.end_as_planned(f"{host}: {why}")
        return True

    def on_loss(self, host: str, why: str) -> None:
        """A host is lost, or it is up and cannot start or stop its ranks."""
        if self.attempt is not None:
            self.attempt.on_loss(host, why)
        if self._agents.leader(host).lost is not None:
            self.roster.lose(host, why)
        elif self.attempt is not None and self._spec.restarts:
            self.retire(host, why)  # its agent answers, but its ranks do not start or do not end

    def on_broken(self, link: AgentLink) -> None:
        """The process that starts ranks died on a host whose agent is up."""
        self.roster.lose_zygote(link, is_running=self.attempt is not None and self.roster.is_used(link.name))

    def _plan_growth(self) -> None:
        """With `--rejoin SECONDS`, restart a job that has run on fewer hosts for so long when others are ready."""
        if self._growing is not None:
            self._growing.cancel()
        attempt = self.attempt
        if attempt is not None and self._spec.rejoin and not attempt.over.is_set():
            found = self.roster.next()
            if isinstance(found, Seating) and len(found.seats) > len(self.roster.seats):
                wait = max(0.0, attempt.start + self._spec.rejoin - time.time())
                why = f"{count(len(found.seats), 'host')} are ready (--rejoin {self._spec.rejoin:g})"
                self._growing = asyncio.get_running_loop().call_later(wait, attempt.end_as_planned, why)

    # --- the loop -------------------------------------------------------------------------------------------

    async def run(self, plan: Plan | None) -> Verdict:
        """Attempt until there is nothing more to try; `plan` is that of the first attempt if its hosts have met."""
        verdict: Verdict | None = None
        while True:
            if plan is None:
                plan = await self._recover()
            if plan is None:
                if verdict is None:
                    raise MusterError(f"lost {names(self.roster.away)} during the start")
                return verdict
            verdict = await self._try_once(plan)
            final = await self._final(verdict)
            if final is not None:
                return final
            plan = None

    async def _try_once(self, plan: Plan) -> Verdict:
        """Start all ranks, wait until all have ended or one has failed, then end the rest."""
        parts, number, is_first = self._parts, self.number, self.attempt is None
        parts.events.unsubscribe(self.attempt)
        only = self._shown(plan, is_first)
        attempt = self.attempt = Attempt(plan, number, parts.folder, self._screen, parts.logs, only)
        self.number += 1
        self._met = [self._agents.leader(place.name) for place in plan.placements]
        attempt.subscribe(parts.events)
        if self.requeue is not None:
            attempt.is_expected = self.requeue.expects
        self._keep(plan, is_first)
        parts.observers.begin_attempt(plan, number, {new: old for old, new in self.roster.swaps})
        watching = parts.observers.watch(attempt)
        try:
            await self._agents.start(plan, number, self.on_loss)
            parts.timeline.note(f"attempt {number}: ranks started")
            if not attempt.losses:
                parts.observers.write()  # other machines see what --detach reports
                self._status.started()
                self._plan_growth()
            await attempt.over.wait()
        finally:
            watching.cancel()
        if not attempt.losses and not attempt.planned:
            await parts.observers.compare_calls(attempt)
        await self.stop_ranks()
        self._retire_stuck(attempt)
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
            self._screen.info(
                f"{count(plan.world_size, 'rank')} on {count(len(plan.placements), 'host')}, "
                f"rendezvous at {plan.master_addr}:{plan.master_port}; logs in {tilde(self._parts.folder)}"
            )

    async def _final(self, verdict: Verdict) -> Verdict | None:
        """The verdict of the job if an attempt was its last one; None to try again."""
        attempt = self.attempt
        assert attempt is not None
        if verdict.ok and not attempt.planned:
            return verdict
        reason = await self.scheduler_reason()
        if reason:
            return verdict.because(reason)
        if self.requeue is not None and self.requeue.is_warned:
            return verdict
        if attempt.planned:
            self._lost = (cut(attempt.planned, _LONGEST_REASON),)
            self._status.attempt_lost(attempt.planned)
            return None
        retired = self.roster.retired
        for call in self.after_failure:
            call(attempt, verdict)
        is_loss = verdict.first is None and bool(attempt.losses)
        if not self._spec.restarts or attempt.stuck or not (verdict.can_restart or is_loss):
            return verdict
        self._budget.note(attempt.progress, attempt.checkpoints)
        if not is_loss and self.roster.retired == retired and self._budget.is_repeated(verdict):
            note = "the restart failed at the same place without any progress, so Muster does not restart it again"
            return replace(verdict, notes=(*verdict.notes, note))
        if not self._budget.spend(None if is_loss else verdict):
            return verdict
        if not is_loss:
            show_failure(self._screen, verdict)
        losses = {loss.host: f"{loss.host}: {loss.why}" for loss in attempt.losses}
        self._lost = tuple(cut(text, _LONGEST_REASON) for text in losses.values() or (verdict.sentence,))
        self._status.failed(verdict)
        self._status.attempt_lost("; ".join(self._lost))
        return None

    async def scheduler_reason(self, *, hit: bool = False) -> str | None:
        """Why the scheduler ended the job, if it did; its message may arrive a moment after its signals."""
        return await self._agents.why_ended(hit=hit or signal.SIGTERM in self.signals)

    # --- between two attempts -------------------------------------------------------------------------------

    async def _recover(self) -> Plan | None:
        """The plan of the next attempt, whose hosts have met; None if there are too few and none returns."""
        now = time.monotonic()
        give_up, repaired = now + WAIT_FOR_RETURN, now + REPAIR_LIMIT
        self._status.phase = "preparing"
        self.roster.repair()
        is_told = False
        while True:
            found = self.roster.next()
            repairing = self.roster.returns.repairing
            is_short = isinstance(found, Shortage) or bool(found.dropped)
            if is_short and repairing and time.monotonic() < repaired:
                await self._wait(repaired, f"starting a new zygote on {names(sorted(repairing))}")
            elif isinstance(found, Seating):
                plan = await self._meet(found)
                if plan is not None:
                    return replace(plan, lost=self._lost)
            else:
                if not self.roster.away or time.monotonic() >= give_up:
                    return None
                if not is_told:
                    wait = f"{WAIT_FOR_RETURN / 60:g} min"
                    self._screen.warning(f"waiting up to {wait} for {names(found.missing)} to return (no spare left)")
                is_told = True
                await self._wait(give_up, f"waiting for {names(found.missing)} to return")

    async def _wait(self, until: float, what: str) -> None:
        """Wait until a host has become usable, at most until then."""
        self.roster.changed.clear()
        self.waiting_for = lambda: f"{what}, {max(0.0, until - time.monotonic()):.0f} s left"
        waiting = asyncio.ensure_future(self.roster.changed.wait())
        try:
            await asyncio.wait([waiting], timeout=max(0.0, until - time.monotonic()))
        finally:
            waiting.cancel()
            self.waiting_for = None

    async def _meet(self, found: Seating) -> Plan | None:
        """Let the hosts of a seating find an address; None if one of them is lost or unusable, so others are needed."""
        plan = self.roster.seat(found)
        self._say(found, plan)
        links = [self._agents.leader(place.name) for place in plan.placements]
        self.waiting_for = lambda: f"choosing an address for {count(len(links), 'host')}"
        try:
            if self.attempt is not None and links == self._met:
                return await another_port(self._parts.job, links[0], self.attempt.plan)
            return await meet(self._parts.job, links, plan, self._screen)
        except MusterError as error:
            if any(link.lost for link in links):
                return None
            if not isinstance(error, HostError) or not self.roster.knows(error.host) or not found.swaps:
                raise
            self._screen.warning(error.message)
            self.retire(error.host, error.why)
            return None
        finally:
            self.waiting_for = None

    def _say(self, found: Seating, plan: Plan) -> None:
        """Report the restart, and what is different from the attempt before."""
        if self.attempt is None:
            return
        changes = what_changes(found, self.attempt.plan, plan.world_size, self._spec.min_hosts)
        planned = self.attempt.planned
        restart = f"planned restart ({planned})" if planned else f"restart {self._budget.used} of {self._budget.limit}"
        self._screen.warning(f"{restart}: {changes}" if changes else restart)

    # --- the end --------------------------------------------------------------------------------------------

    async def stop_ranks(self) -> None:
        """End everything that still runs on the remaining hosts."""
        self._status.stopping()
        grace = self.grace
        if self.attempt is not None and self.attempt.losses:
            grace = min(grace, GRACE_AFTER_LOSS if self._spec.restarts else LAST_GRACE)
        stuck = await self._agents.stop(grace, self.on_loss, interrupt=self.interrupt)
        for host, pids in stuck.items():
            if host not in self._status.stuck:
                which = ", ".join(map(str, pids))
                self._screen.warning(f"{host}: could not kill process {which}, blocked in the kernel (disk or driver)")
        if stuck and self.attempt is not None:
            self.attempt.stuck, self._status.stuck = True, tuple(stuck)
        self._stuck = stuck

    def _retire_stuck(self, attempt: Attempt) -> None:
        """Replace hosts with a process that could not be killed, if possible: nothing is restarted on top of it."""
        if self._stuck and self._spec.restarts and isinstance(self.roster.next(without=self._stuck), Seating):
            for host, pids in self._stuck.items():
                self.retire(host, f"process {', '.join(map(str, pids))} is blocked in the kernel")
            attempt.stuck = False

    async def close(self) -> None:
        """Stop what runs in the background: no host is brought back any more."""
        if self._growing is not None:
            self._growing.cancel()
        await self.roster.returns.close()
