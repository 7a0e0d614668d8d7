"""The hosts of a running job: which run ranks, which are spare, and which are lost and may return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from muster.controller import prepare
from muster.controller.agents import Agents
from muster.controller.host_pool import Member, Seat, Seating, Shortage, first_seats, next_seating, spares_of
from muster.controller.host_return import HostReturns
from muster.controller.links.link import SUSPECT_AFTER, AgentLink
from muster.controller.monitor.job_status import JobStatus
from muster.controller.preparation import Preparation
from muster.job import Job
from muster.output.screen import Screen
from muster.plan import Plan
from muster.text import count

if TYPE_CHECKING:
    from muster.jobs.state import HostPhase


class HostRoster:
    """Keeps what each host is used for up to date, and chooses the hosts of the next attempt."""

    def __init__(
        self,
        job: Job,
        agents: Agents,
        status: JobStatus,
        screen: Screen,
        preparation: Preparation,
        on_ready: Callable[[], None],
    ) -> None:
        self._job = job
        self._spec = job.spec
        self._agents = agents
        self._status = status
        self._screen = screen
        self._on_change = on_ready
        self._members: dict[str, Member] = {}
        self._whole: tuple[Seat, ...] = ()
        """The seats of the whole job."""
        self.seats: tuple[Seat, ...] = ()
        """The seats of the last attempt, or of the one that is about to start."""
        self._attempted: tuple[Seat, ...] = ()
        """The seats of the last attempt."""
        self.swaps: tuple[tuple[str, str], ...] = ()
        """The host that was replaced and its spare, for each spare that this attempt has put in use."""
        self._draining: set[str] = set()
        """Retired hosts that are used again if they return after a loss."""
        self._broken: set[str] = set()
        """Hosts whose zygote died while their agent is up."""
        self.returns = HostReturns(agents, preparation, status, screen, self._on_ready)
        self.changed = asyncio.Event()
        """Set when a host has become usable."""

    @property
    def members(self) -> Sequence[Member]:
        """All hosts of the job, as they are now."""
        return tuple(self._members.values())

    @property
    def away(self) -> list[str]:
        """The hosts that have no usable agent, and may return."""
        return [member.name for member in self.members if member.standing == "away"]

    @property
    def retired(self) -> frozenset[str]:
        """The hosts that run no ranks any more."""
        return frozenset(member.name for member in self.members if member.standing == "retired")

    def is_used(self, name: str) -> bool:
        """Whether a host runs ranks."""
        return any(seat.host == name for seat in self.seats)

    def is_ready(self, name: str) -> bool:
        """Whether a host can run ranks."""
        return name in self._members and self._members[name].standing == "ready"

    # --- choosing -------------------------------------------------------------------------------------------

    def enroll(self) -> bool:
        """Take stock of the hosts after connecting; returns whether those that are up are enough to begin."""
        up = [link for link in self._agents.usable if not self.returns.is_expected(link.name)]
        known = {link.name: self._slots(link) for link in up}
        usual = next(iter(known.values()), 1)
        for link in self._agents.leaders:
            slots = known.get(link.name) or link.spec.host.slots or self._spec.nproc or usual
            standing = "retired" if link.name in self.retired else "ready" if link.name in known else "away"
            self._members[link.name] = Member(name=link.name, slots=slots, standing=standing)
        self._whole = self.seats = self._attempted = first_seats(self.members, self._spec.spares)
        return bool(known) and isinstance(self.next(), Seating)

    def _slots(self, link: AgentLink) -> int:
        return prepare.settled(self._job, link)[0].slots or 1

    @property
    def whole_size(self) -> int:
        """The world size with all hosts."""
        return sum(seat.slots for seat in self._whole)

    def next(self, *, without: Collection[str] = ()) -> Seating | Shortage:
        """The hosts of the next attempt, `without` some that are usable."""
        members = [
            replace(member, standing="retired") if member.name in without else member
            for member in sorted(self.members, key=lambda member: self.is_silent(member.name))
        ]
        grow = self._spec.rejoin is not None
        return next_seating(members, self._attempted, whole=self._whole, min_hosts=self._spec.min_hosts, grow=grow)

    def is_silent(self, name: str) -> bool:
        """Whether a host may be about to be lost: as a spare it is used last."""
        return self._agents.leader(name).silence > SUSPECT_AFTER

    def begin(self) -> None:
        """An attempt starts on these hosts."""
        self._attempted = self.seats

    def seat(self, found: Seating) -> Plan:
        """Use the hosts of a seating from now on; returns its plan, without an address."""
        links = [self._agents.leader(seat.host) for seat in found.seats]
        plan = prepare.plan_for(self._job, links, [seat.slots for seat in found.seats])
        before = {seat.place: seat.host for seat in self._attempted}
        pairs = [(before.get(seat.place, seat.host), seat.host) for seat in found.seats]
        self.seats, self.swaps = found.seats, tuple((old, new) for old, new in pairs if old != new)
        return plan

    def retire(self, host: str, why: str, phase: HostPhase) -> None:
        """Run no ranks on this host from the next attempt on, although its agent may be up."""
        self._members[host] = replace(self._members[host], standing="retired", why=why)
        if phase == "draining":
            self._draining.add(host)
        self._status.set_host(host, phase=phase, why=why)

    def restore(self, host: str) -> None:
        """Use a retired host again, if its agent is up."""
        if host in self.retired and self._agents.leader(host).lost is None:
            self._members[host] = replace(self._members[host], standing="away")
            self._on_ready(host)

    # --- what happens to hosts ------------------------------------------------------------------------------

    def lose(self, host: str, why: str) -> None:
        """The connection to a host is lost."""
        member = self._members.get(host)
        if member is None:
            return
        is_spare = member.standing == "ready" and not self.is_used(host)
        if member.standing == "ready" or host in self._draining:
            self._draining.discard(host)
            self._members[host] = replace(member, standing="away", why=why)
        if is_spare:
            left = len(spares_of(self.members, self.seats))
            self._screen.warning(f"{host} was a spare; {count(left, 'spare')} left")
        if self._members[host].standing == "away":
            self.expect(host)

    def expect(self, host: str) -> None:
        """Try to reach a host again in the background, if the job could use it."""
        if self._spec.restarts:
            self.returns.expect(host)

    def lose_zygote(self, link: AgentLink, *, is_running: bool) -> None:
        """The process that starts ranks died on a host whose agent is up; `is_running` if its ranks are not stopped."""
        member = self._members.get(link.name)
        if member is None or member.standing != "ready":
            return
        self._members[link.name] = replace(member, standing="away", why="its zygote died")
        self._broken.add(link.name)
        again = "; starting it again" if self._spec.restarts else ""
        self._screen.warning(f"{link.name}: the process that starts its ranks was killed{again}")
        if not is_running:
            self.repair()

    def repair(self) -> None:
        """Start the zygotes that died again; everything that ran below them has been stopped."""
        for name in self._broken if self._spec.restarts else ():
            link = self._agents.leader(name)
            if link.lost is None:
                self.returns.repair(link)
        self._broken.clear()

    def _on_ready(self, name: str) -> None:
        """A host is usable again; one that was found to be bad meanwhile stays out."""
        member = self._members[name]
        if member.standing == "retired" and name not in self._draining:
            self._status.set_host(name, phase="bad", why=member.why)
            return
        self._draining.discard(name)
        self._members[name] = replace(member, slots=self._slots(self._agents.leader(name)), standing="ready", why="")
        if self.is_used(name):
            self._status.set_host(name, phase="up")
            self._screen.warning(f"{name} is back")
        else:
            self._status.set_host(name, phase="up", role="spare")
            self._screen.warning(f"{name} is back and is a spare now")
        self.changed.set()
        self._on_change()
