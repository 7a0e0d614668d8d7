"""The loop over attempts: runs the ranks on the usable hosts, and again on others when hosts are lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from muster.controller.attempt import Attempt
from muster.controller.attempt_runner import AttemptRunner, Parts
from muster.controller.diagnosis.independent_ranks import warn
from muster.controller.diagnosis.verdict import Verdict, drained
from muster.controller.host_pool import Member, Seating, Shortage, what_changes
from muster.controller.host_roster import HostRoster
from muster.controller.links.link import AgentLink
from muster.controller.rendezvous import another_port, meet
from muster.controller.restart_budget import RestartBudget
from muster.controller.summary import show_failure
from muster.errors import HostError, MusterError
from muster.plan import Plan
from muster.text import count, cut, names

if TYPE_CHECKING:
    from muster.jobs.state import HostPhase

WAIT_FOR_RETURN = 300.0
"""Seconds to wait for lost hosts to return when the others are too few to continue."""

REPAIR_LIMIT = 20.0
"""Seconds to wait for a new zygote on a host whose agent is up, before the job continues with fewer hosts."""

_LOOK = 0.25
"""Seconds between two looks at whether the hosts that meet still answer."""

_LONGEST_REASON = 300
"""Maximum number of characters of each sentence in MUSTER_LOST."""


class Recovery(AttemptRunner):
    """The attempts of one job and the hosts they use."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.roster = HostRoster(
            parts.job, parts.agents, parts.status, parts.screen, parts.preparation, self._plan_growth
        )
        self.waiting_for: Callable[[], str] | None = None
        """What the job waits for while no ranks run, for the status line and `muster ps`."""
        self.signals: Collection[signal.Signals] = ()
        """The signals that ranks have received from outside."""
        self.after_failure: list[Callable[[Attempt, Verdict], Awaitable[None]]] = []
        """Called when an attempt has failed, the last one too; may retire hosts before those of the next are chosen."""
        self._met: list[AgentLink] = []
        """The agents of the last attempt, which have found an address."""
        self._lost: tuple[str, ...] = ()
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
            changes = what_changes(self.roster.swaps, plan, plan, None)
            if plan.world_size < self.roster.whole_size:
                changes = f"{plan.world_size} of {self.roster.whole_size} ranks (--min-hosts {self._spec.min_hosts})"
            self._screen.warning(f"starting without {names(absent)}: {changes or 'not all spares are up'}")
        for name in absent:
            self.roster.expect(name)
        return plan

    def retire(self, host: str, why: str, *, phase: HostPhase = "bad") -> None:
        """Run no ranks on this host in later attempts, although its agent may be up."""
        self.roster.retire(host, why, phase)

    def restore(self, host: str) -> None:
        """Use a retired host again, if its agent is up."""
        self.roster.restore(host)

    def can_replace(self, host: str, *, shrink: bool = True) -> bool:
        """Whether another attempt could run without this host; unless `shrink`, on as many hosts."""
        found = self.roster.next(without=[host])
        return isinstance(found, Seating) and (shrink or not found.dropped)

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

    def on_loss(self, host: str, why: str, *, ends_all: bool = False) -> None:
        """A host is lost, or it is up and cannot start or stop its ranks; `ends_all`: the launcher ends all others."""
        if self.attempt is not None:
            self.attempt.on_loss(host, why, ends_all=ends_all)
        if self._agents.leader(host).lost is not None:
            self.roster.lose(host, why)
        elif self.attempt is not None and self._spec.restarts and self.roster.is_ready(host):
            self.retire(host, why)  # its agent answers, but its ranks do not start or do not end

    def on_broken(self, link: AgentLink) -> None:
        """The process that starts ranks died on a host whose agent is up."""
        self.roster.lose_zygote(link, is_running=self.attempt is not None and self.roster.is_used(link.name))

    def on_started(self) -> None:
        """All ranks of an attempt have been started."""
        self._plan_growth()

    def _plan_growth(self) -> None:
        """With `--rejoin SECONDS`, restart a job that has run on fewer hosts for so long when others are ready."""
        if self._growing is not None:
            self._growing.cancel()
        attempt = self.attempt
        if attempt is not None and self._spec.rejoin and not attempt.over.is_set():
            found = self.roster.next()
            if isinstance(found, Seating) and len(found.seats) > len(self.roster.seats):
                wait = max(0.0, attempt.start + self._spec.rejoin - time.time())
                self._growing = asyncio.get_running_loop().call_later(wait, self._grow, attempt)

    def _grow(self, attempt: Attempt) -> None:
        """Restart on more hosts, if they are still ready and the ranks are neither saving nor finishing."""
        found = self.roster.next()
        is_ending = attempt.drain is not None or attempt.ended_well or self.requeue.is_warned
        if not is_ending and isinstance(found, Seating) and len(found.seats) > len(self.roster.seats):
            hosts = count(len(found.seats), "host")
            attempt.end_as_planned(f"{hosts} are ready (--rejoin {self._spec.rejoin:g}s)")

    # --- the loop -------------------------------------------------------------------------------------------

    async def run(self, plan: Plan) -> Verdict:
        """Attempt until there is nothing more to try; `plan` is that of the first attempt, whose hosts have met."""
        while True:
            self.roster.begin()
            self._met = [self._agents.leader(place.name) for place in plan.placements]
            verdict = await self.try_once(plan, {new: old for old, new in self.roster.swaps})
            if self.stuck:
                verdict = self._without_stuck(verdict)
            final = await self._final(verdict)
            if final is not None:
                return final
            found = await self._recover()
            if found is None:
                return self._given_up(verdict)
            plan = found

    async def _final(self, verdict: Verdict) -> Verdict | None:
        """The verdict of the job if an attempt was its last one; None to try again."""
        attempt = self.attempt
        assert attempt is not None
        if verdict.ok and not attempt.planned:
            return verdict
        reason = await self.scheduler_reason()
        if reason:
            return verdict.because(reason)
        if self.requeue.is_warned:
            return verdict
        if attempt.planned:
            self._budget.note(attempt.progress, has_saved=attempt.has_saved)
            self._lost = (cut(attempt.planned, _LONGEST_REASON),)
            self._status.attempt_lost(attempt.planned)
            return None
        retired = self.roster.retired
        for call in self.after_failure:
            await call(attempt, verdict)
        is_loss = verdict.first is None and bool(attempt.losses) and attempt.drained is None
        if not self._spec.restarts or attempt.stuck or not (verdict.can_restart or is_loss):
            return verdict
        self._budget.note(attempt.progress, has_saved=attempt.has_saved)
        if not is_loss and self.roster.retired <= retired and self._budget.is_repeated(verdict):
            note = "the restart failed at the same place without any progress, so Muster does not restart it again"
            return replace(verdict, notes=(*verdict.notes, note))
        if not self._budget.spend(None if is_loss else verdict):
            return verdict
        if not is_loss:
            show_failure(self._screen, verdict)
        losses = {loss.host: f"{loss.host}: {loss.why}" for loss in attempt.losses}
        self._lost = tuple(cut(text, _LONGEST_REASON) for text in losses.values() or (verdict.sentence,))
        if len(losses) > 1:
            self._status.attempt_lost(f"lost {names(list(losses))}")  # the verdict names only the first
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
        is_reported = False
        while True:
            found = self.roster.next()
            repairing = self.roster.returns.repairing
            is_short = isinstance(found, Shortage) or bool(found.dropped)
            if is_short and repairing and time.monotonic() < repaired:
                await self._wait(repaired, f"starting a new zygote on {names(sorted(repairing))}")
            elif isinstance(found, Seating):
                plan = await self._meet(found)
                if plan is not None and self._is_current(plan):
                    return replace(plan, lost=self._lost)
            else:
                if not self.roster.away or time.monotonic() >= give_up:
                    return None
                if not is_reported:
                    wait = f"{WAIT_FOR_RETURN / 60:g} min"
                    away = names(self.roster.away)
                    self._screen.warning(f"waiting up to {wait} for {away} to return (no spare left)")
                is_reported = True
                await self._wait(give_up, f"waiting for {names(self.roster.away)} to return")

    def _is_current(self, plan: Plan) -> bool:
        """Whether nothing happened to the hosts of a plan while they met, or no others could replace them."""
        is_ready = all(self.roster.is_ready(place.name) for place in plan.placements)
        return is_ready or isinstance(self.roster.next(), Shortage)

    def _given_up(self, verdict: Verdict) -> Verdict:
        """The verdict of a job that has too few hosts left."""
        note = "no host is left that could replace it"
        if self.roster.away:
            note = f"{names(self.roster.away)} did not return within {WAIT_FOR_RETURN / 60:g} min"
        if self.attempt is not None and self.attempt.planned:  # its ranks ended well, but before they were done
            sentence = f"the job could not continue after a planned restart ({self.attempt.planned})"
            verdict = drained(sorted(self.roster.retired), sentence)
        return replace(verdict, notes=(*verdict.notes, note))

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
        self._say(plan)
        links = [self._agents.leader(place.name) for place in plan.placements]
        self.waiting_for = lambda: f"choosing an address for {count(len(links), 'host')}"
        try:
            if self.attempt is not None and links == self._met:
                return await another_port(self._parts.job, links[0], self.attempt.plan)
            meeting = asyncio.ensure_future(meet(self._parts.job, links, plan, self._screen))
            return await meeting if await self._is_worth_waiting(meeting) else None
        except MusterError as error:
            lost = [f"{link.name}: {link.lost.why}" for link in links if link.lost]
            self._lost += tuple(cut(text, _LONGEST_REASON) for text in lost)
            if lost:
                return None
            # The others have met before, so if the cause is not known it is a host that is new.
            unfit = [error.host] if isinstance(error, HostError) else [new for _, new in self.roster.swaps]
            is_known = bool(unfit) and all(map(self.roster.is_ready, unfit))
            if not is_known or isinstance(self.roster.next(without=unfit), Shortage):
                raise
            self._screen.warning(error.message)
            for host in unfit:
                self.retire(host, error.why if isinstance(error, HostError) else error.message)
            return None
        finally:
            self.waiting_for = None

    async def _is_worth_waiting(self, meeting: asyncio.Future[Plan]) -> bool:
        """Wait for the hosts to meet; False if a new one is silent and another spare can take its place at once."""
        try:
            while not (await asyncio.wait([meeting], timeout=_LOOK))[0]:
                silent = {member.name for member in self.members if self.roster.is_silent(member.name)}
                found = self.roster.next(without=silent)
                is_enough = isinstance(found, Seating) and len(found.seats) == len(self.roster.seats)
                if is_enough and any(new in silent for _, new in self.roster.swaps):
                    return False
            return True
        finally:
            meeting.cancel()

    def _say(self, plan: Plan) -> None:
        """Report the restart, and what is different from the attempt before."""
        if self.attempt is None:
            return
        changes = what_changes(self.roster.swaps, self.attempt.plan, plan, self._spec.min_hosts)
        planned = self.attempt.planned
        restart = f"planned restart ({planned})" if planned else f"restart {self._budget.used} of {self._budget.limit}"
        self._screen.warning(f"{restart}: {changes}" if changes else restart)

    # --- the end --------------------------------------------------------------------------------------------

    def _without_stuck(self, verdict: Verdict) -> Verdict:
        """Retire hosts with a process that could not be killed, if the job can do without: nothing starts there."""
        attempt = self.attempt
        if attempt is None or not self._spec.restarts or isinstance(self.roster.next(without=self.stuck), Shortage):
            return verdict
        for host, pids in self._stuck.items():
            self.retire(host, f"process {', '.join(map(str, pids))} is blocked in the kernel")
        attempt.stuck = False
        return warn(attempt.verdict(), attempt.trained_alone, self._parts.job)

    async def close(self) -> None:
        """Stop what runs in the background: no host is brought back any more."""
        if self._growing is not None:
            self._growing.cancel()
        await self.roster.returns.close()
