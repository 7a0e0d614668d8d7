"""Drains hosts that are about to go away: one signal to all ranks, time to save, then another host takes over.

Notices come from `muster drain`, from SIGTERM to an agent, and from what --notice polls on each host.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.diagnosis import verdict
from muster.controller.events import EventStream
from muster.controller.host_pool import Seating, Shortage
from muster.controller.links.link import AgentLink
from muster.controller.monitor.job_status import JobStatus
from muster.controller.recovery import Recovery
from muster.errors import HostError, MusterError, UsageError
from muster.shared.events import Notice
from muster.spec import RunSpec
from muster.text import count, duration, names, rank_list

SAVE_LIMIT = 60.0
"""Seconds that ranks have to save where nobody said when the host goes away."""

_TAKEOVER = 5.0
"""Most seconds before the deadline at which the ranks are stopped, so that others start before the host goes away."""

_TAKEOVER_SHARE = 0.25
"""The same as a share of the time left."""

_EARLIER = 1.0
"""Seconds by which a new deadline must be earlier than the last one to change anything."""

_ANSWER_LIMIT = 5.0
"""Seconds for an agent to answer."""


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """A host that is about to go away."""

    why: str
    """Who announced it, as a clause."""
    deadline: float | None
    """When it goes away, in seconds since 1970; None if nobody said when."""
    stop: float
    """When its ranks must have ended, in seconds since 1970."""


def leaving(left: float | None, why: str, now: float) -> Leaving:
    """A host that has so many seconds left; the last ones are for the takeover."""
    if left is None:
        return Leaving(why=why, deadline=None, stop=now + SAVE_LIMIT)
    return Leaving(why=why, deadline=now + left, stop=now + left - min(_TAKEOVER, left * _TAKEOVER_SHARE))


class Drain:
    """Acts on notices: signals the ranks once per attempt, and replaces the hosts when all ranks have ended."""

    def __init__(
        self,
        spec: RunSpec,
        agents: Agents,
        status: JobStatus,
        recovery: Recovery,
        events: EventStream,
        warn: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._agents = agents
        self._status = status
        self._recovery = recovery
        self._warn = warn
        self._signal = signal.Signals[f"SIG{spec.drain_signal}"]
        self._hosts: dict[str, Leaving] = {}
        """Every host that is about to go away, also after its ranks have left it."""
        self._signaled: Attempt | None = None
        """The last attempt whose ranks were signaled."""
        self._begun = 0.0
        """When that was, in seconds since 1970."""
        self._stop = 0.0
        """When the ranks of that attempt are stopped, in seconds since 1970."""
        self._timer: asyncio.TimerHandle | None = None
        self._ended_before = False
        """Whether a rank had ended with exit code 0 before the others were signaled: the script was finishing."""
        self._unheard: set[int] = set()
        """Ranks that had no handler for the signal, which would have killed them, when it was sent."""
        self._watched: set[AgentLink] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        events.subscribe(Notice, self._on_notice)

    # --- called by the controller ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Let new agents watch for notices, and new ranks save if they run on a host that could not be replaced."""
        if not self._recovery.roster.members:
            return  # not all hosts are connected
        sigterm = bool(self._spec.spares or self._spec.min_hosts) or self._agents.launch.engine.sigterm_is_notice
        for link in self._agents.links if sigterm or self._spec.notice else ():
            if link.facts and not link.lost and link not in self._watched:
                self._watched.add(link)
                self._hosts.pop(link.name, None)  # it has returned
                command = self._spec.notice if link in self._agents.leaders else ""
                self._begin(link.request("notices", limit=_ANSWER_LIMIT, command=command, sigterm=sigterm))

        for host, known in self._hosts.items():
            if self._signaled is not self._recovery.attempt and self._runs_ranks(host):
                self._warn_ranks(host, known)

    def request(self, host: str, left: float | None) -> str:
        """Drain a host for `muster drain`, and say what happens; UsageError or MusterError if it cannot be drained."""
        job = self._status.job.id
        hosts = [link.name for link in self._agents.leaders]
        if host not in hosts:
            raise UsageError(f"host {host} is not in job {job}", hint=f"its hosts are {names(hosts, 20)}")
        if self._recovery.attempt is None:
            raise MusterError(f"job {job} has not started its ranks yet", hint="try again when it has")
        found = leaving(left, "muster drain", time.time())
        known = self._hosts.get(host)
        if known is not None and not self._runs_ranks(host):
            return f"{host} is already drained ({known.why}); no rank runs there"
        if known is not None and not _is_earlier(found, known):
            raise UsageError(f"{host} is already draining ({known.why})", hint="`muster top` shows when it goes away")
        is_needed = self._recovery.roster.is_used(host) and isinstance(self._next(without=host), Shortage)
        if left is None and is_needed:
            raise UsageError(
                f"job {job} has no spare host that could replace {host}",
                hint=f"to let its ranks save and then end the job, add a time: `muster drain {job} {host} --in 60s`",
            )
        return self._take(host, found)

    def announce(self, deadline: float, number: int) -> None:
        """Let all ranks know when they are ended, for a scheduler that ends the whole job, and send them its signal."""
        if self._recovery.attempt is not None:
            self._begin(self._send_deadline(self._recovery.attempt, deadline, number))

    # --- notices --------------------------------------------------------------------------------------------

    def _on_notice(self, link: AgentLink, event: Notice) -> None:
        found = leaving(event["left"], event["why"], time.time())
        known = self._hosts.get(link.name)
        if known is None or _is_earlier(found, known):
            self._take(link.name, found)

    def _take(self, host: str, found: Leaving) -> str:
        """Begin to drain a host, or drain it sooner; returns what was shown."""
        is_new = host not in self._hosts
        self._hosts[host] = found
        self._status.set_host(host, phase="draining", why=found.why, deadline=found.deadline)
        self._recovery.retire(host, found.why, phase="draining")
        if self._runs_ranks(host):
            return self._warn_ranks(host, found)
        effect = "it runs no more ranks" if self._recovery.roster.is_used(host) else "it is no longer a spare"
        said = f"{_leaves(host, found)}; no rank runs there, so {effect}"
        if is_new:
            self._warn(said)
        return said

    def _warn_ranks(self, host: str, found: Leaving) -> str:
        """Signal all ranks of the attempt, unless that has been done, and stop them in time."""
        attempt = self._recovery.attempt
        assert attempt is not None
        is_first = self._signaled is not attempt
        if is_first:
            self._signaled, self._begun = attempt, time.time()
            self._ended_before = bool(attempt.ended_well)
            attempt.drain = self._on_all_ended
        if is_first or found.stop < self._stop:
            self._stop = found.stop
            left = max(0.0, self._stop - time.time())
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(left, self._on_time)
            self._begin(self._send_deadline(attempt, self._stop, self._signal if is_first else 0))
        signaled = f"all ranks get {self._signal.name}" if is_first else "the ranks have been signaled"
        said = f"{_leaves(host, found)}; {signaled} and {_time(self._stop)} to save, then {self._what_follows()}"
        self._warn(said)
        return said

    def _next(self, without: str = "") -> Seating | Shortage:
        """The hosts of the next attempt, without those that are about to go away."""
        return self._recovery.roster.next(without={*self._hosts, without})

    def _what_follows(self) -> str:
        seating = self._next()
        if isinstance(seating, Shortage):
            follows = "is requeued" if self._recovery.requeue.is_possible else "ends"
            return f"the job {follows}, because it has no spare host"
        taking_over = [spare for _, spare in seating.swaps]
        if taking_over and not seating.dropped:
            return f"{names(taking_over)} {'takes' if len(taking_over) == 1 else 'take'} over"
        return f"the job continues on {count(len(seating.seats), 'host')}"

    async def _send_deadline(self, attempt: Attempt, deadline: float, number: int) -> None:
        """Send the deadline to the agents of all ranks, and a signal unless it is 0."""
        hosts = {placement.name for placement in attempt.plan.placements}
        links = [link for link in self._agents.links if link.name in hosts and not link.lost]
        asked = (
            link.request("deadline", limit=_ANSWER_LIMIT, time=deadline + link.clock_offset, signal=number)
            for link in links
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        known = [answer for answer in answers if not isinstance(answer, BaseException)]
        self._unheard = {rank for answer in known for rank in answer["unheard"]}

    # --- the end of the attempt -----------------------------------------------------------------------------

    def _on_all_ended(self) -> None:
        attempt = self._signaled
        assert attempt is not None
        if attempt.over.is_set():
            return  # it was ended for another reason, and now its ranks are stopped
        if self._ended_before and len(attempt.ended_well) == attempt.plan.world_size:
            attempt.over.set()  # the script had finished anyway
            return
        self._finish(attempt, f"all ranks ended {duration(time.time() - self._begun)} after the signal")

    def _on_time(self) -> None:
        attempt = self._signaled
        if attempt is not None and not attempt.over.is_set():
            late, unheard = attempt.running, self._unheard.intersection(attempt.running)
            why = f" ({rank_list(unheard)} without a handler for {self._signal.name})" if unheard else ""
            self._finish(attempt, f"{rank_list(late)} did not end in time{why}")

    def _finish(self, attempt: Attempt, how: str) -> None:
        """Replace the hosts that are about to go away, or end the job if that is impossible."""
        if self._timer is not None:
            self._timer.cancel()
        drained = [host for host in self._hosts if _is_in(attempt, host)]
        if isinstance(self._next(), Shortage):
            why = "; ".join(_leaves(host, self._hosts[host]) for host in drained)
            sentence = f"{why}, and the job has no spare host; {how}"
            attempt.drained = verdict.drained(drained, sentence)
            attempt.over.set()
            return
        self._warn(how)
        for host in drained:
            self._recovery.replace(host, self._hosts[host].why, phase="draining")

    def _runs_ranks(self, host: str) -> bool:
        attempt = self._recovery.attempt
        return attempt is not None and not attempt.over.is_set() and _is_in(attempt, host)

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(_unless_lost(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _unless_lost(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except HostError:
        pass  # its loss is reported elsewhere


def _is_in(attempt: Attempt, host: str) -> bool:
    return any(placement.name == host for placement in attempt.plan.placements)


def _is_earlier(new: Leaving, old: Leaving) -> bool:
    return new.stop < old.stop - _EARLIER


def _leaves(host: str, found: Leaving) -> str:
    when = "is about to go away" if found.deadline is None else f"has {_time(found.deadline)} left"
    return f"{host} {when} ({found.why})"


def _time(moment: float) -> str:
    return f"{max(0.0, moment - time.time()):.0f} s"
