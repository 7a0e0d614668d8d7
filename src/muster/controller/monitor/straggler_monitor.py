"""Detects stragglers while a job runs, determines the cause, and reports each once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from muster.controller.debug_log import guarded, internal_error
from muster.controller.events import EventStream
from muster.controller.links.link import AgentLink, LinkLost
from muster.controller.monitor.job_status import JobStatus
from muster.output.screen import Screen
from muster.shared.events import Exit
from muster.shared.replies import Examined
from muster.shared.reports import Arrivals, Progress

# The judging code is imported with the first arrivals, so that it does not delay the start of a job.
if TYPE_CHECKING:
    from muster.controller.monitor.rounds import Rounds
    from muster.controller.monitor.slow_causes import Evidence
    from muster.controller.monitor.straggler import History, RankCalls, Slow, Step

LOOK_FOR = (0.6, 3.0)
"""Minimum and maximum duration of an examination in seconds; it takes one and a half steps."""

ASKED_HOSTS = 4
"""Number of hosts examined besides the suspect's."""

FRESH = 10.0
"""Seconds for which an examination is valid, and average time between two that only follow a suspicion."""

AT_ONCE = 3
"""Number of examinations that suspicions may trigger in a row."""

SOON, NOW_AND_THEN = 4.0, 60.0
"""Seconds between two network examinations of a job whose ranks wait a lot although none is late: if steps have become
slower, and if they have not."""

MOST_HOSTS = 64
"""Maximum number of hosts whose network is examined."""

MOST_REPORTS = 8
"""Number of reports after which more slices are required, because the stragglers of the job keep changing."""

REST = 20.0
"""Pause between judgments as a multiple of the time one took, so that large jobs do not overload the controller."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The result of a judgment."""

    steps: Sequence[Step]
    took: float
    """Seconds of CPU."""
    is_gone: bool = False
    """The reported ranks have recovered."""
    is_as_reported: bool = False
    slow: Slow | None = None
    suspect: Slow | None = None


def _answer(
    history: History,
    rounds: Sequence[Step],
    uncertain: Mapping[int, float],
    waiting: Mapping[int, float],
    reported: Slow | None,
    reported_at: float,
    is_calm: bool,
) -> _Answer:
    """Judge in a thread, which has exclusive access to the history.

    `uncertain` is the clock error of each rank in seconds, `is_calm` whether there have been few reports so far.
    """
    from muster.controller.monitor import rounds as by_waiting
    from muster.controller.monitor import straggler

    begin = time.thread_time()
    steps = history.steps()
    over: bool | None = False
    if reported is not None:
        over = straggler.is_over(rounds if reported.by_waiting else steps, reported, reported_at)
        changed = straggler.judge(steps, uncertain, straggler.CHANGE)
        if not over and (over is None or changed is None or set(changed.ranks) <= set(reported.ranks)):
            return _Answer(steps=steps, took=time.thread_time() - begin, is_as_reported=True)
    is_new = reported is None and is_calm
    slow = straggler.judge(steps, uncertain, straggler.LOOKS if is_new else straggler.CHANGE)
    if slow is not None and not steps[-1].number and not straggler.waits_less(slow, waiting):
        slow = None
    slow = slow or by_waiting.judge_waiting(rounds, steps)
    suspect = slow or straggler.judge(steps, uncertain, straggler.SUSPECT)
    took = time.thread_time() - begin
    return _Answer(steps=steps, took=took, is_gone=bool(over), slow=slow, suspect=suspect)


class StragglerMonitor:
    """Straggler detection for one job."""

    def __init__(self, status: JobStatus, screen: Screen) -> None:
        self.status = status
        self.screen = screen
        self._history: History | None = None
        self._links: dict[int, AgentLink] = {}
        self._looks: dict[int, deque[tuple[str, float | None]]] = {}
        """For each rank, the recent locations of its code and the share of time in which it waited."""
        self._rounds: Rounds | None = None
        self._fresh: set[int] = set()
        """Ranks with reports that have not been judged yet."""
        self._not_before = 0.0
        self._judging: asyncio.Future[None] | None = None
        self._held: list[Callable[[], None]] = []
        """Handlers of events that arrived during a judgment and would change its input."""
        self._reported: Slow | None = None
        self._reported_at = 0.0
        self._reports = 0
        self._evidence: dict[int, Evidence] = {}
        self._examined: set[int] = set()
        """The suspects the evidence is about."""
        self._examined_at = -FRESH
        self._examining: asyncio.Future[None] | None = None
        self._credit, self._credit_at = float(AT_ONCE), 0.0
        self._best_step = float("inf")
        self._network_at = 0.0
        """When the network was last examined."""
        self._reported_network: tuple[str, ...] = ()
        self._is_off = False

    def begin_attempt(self) -> None:
        """Reset the state for a new attempt."""
        self._history, self._rounds, self._links, self._looks = None, None, {}, {}
        self._held, self._fresh = [], set()
        self._reported, self._examined = None, set()
        self._best_step, self._network_at, self._reported_network = float("inf"), time.monotonic(), ()

    def subscribe(self, events: EventStream, observer: str) -> None:
        """Subscribe to the events of the ranks."""
        events.subscribe(Arrivals, self._on_arrivals, observer=observer)
        events.subscribe(Progress, self._on_progress, observer=observer)
        events.subscribe(Exit, self._on_exit, observer=observer)

    def _on_arrivals(self, link: AgentLink, event: Arrivals) -> None:
        if self._is_off:
            return
        if self._judging is not None:
            self._held.append(lambda: self._on_arrivals(link, event))
            return
        from muster.controller.monitor.rounds import Rounds
        from muster.controller.monitor.straggler import History

        self._rounds = self._rounds or Rounds()
        self._history = self._history or History()
        rank = event["rank"]
        self._links[rank] = link
        self._history.add(rank, event, link.clock_offset)
        self._fresh.add(rank)
        if len(self._fresh) == len(self._ranks):  # all ranks report at the same moment
            self.tick()

    def _on_progress(self, link: AgentLink, event: Progress) -> None:
        if self._is_off or "place" not in event:
            return
        waiting = event.get("waiting")
        self._looks.setdefault(event["rank"], deque(maxlen=6)).append((event["place"], waiting))
        if self._rounds is not None:
            now = link.our_time(event["time"])
            self._rounds.add(event["rank"], now, event.get("steps", 0), waiting, self._ranks)

    def _on_exit(self, link: AgentLink, event: Exit) -> None:
        if self._is_off:
            return
        if self._judging is not None:
            self._held.append(lambda: self._on_exit(link, event))
        elif self._history is not None:
            self._history.ranks.pop(event["rank"], None)

    @property
    def _ranks(self) -> dict[int, RankCalls]:
        """The ranks that have reported and still run."""
        return self._history.ranks if self._history is not None else {}

    def tick(self) -> None:
        """Start a judgment if there are new reports; to be called about twice a second."""
        if not self._fresh or time.monotonic() < self._not_before or len(self._ranks) < 2 or self._is_off:
            return
        if self._judging is None and self._history is not None:
            self._fresh.clear()
            self._judging = asyncio.ensure_future(self._judge(self._history))

    async def _judge(self, history: History) -> None:
        """Judge in a thread, one at a time; with thousands of ranks it would otherwise block the heartbeats."""
        begin, examined_at = time.monotonic(), self._examined_at
        with guarded(self._give_up):
            answer = await asyncio.to_thread(self._question(history))
            if self._examined_at == examined_at:  # otherwise there is new evidence to judge by
                self._not_before = begin + REST * answer.took
            if history is self._history:  # no new attempt has begun
                self._act(answer)
        self._judging = None
        held, self._held = self._held, []
        with guarded(self._give_up):
            for take in held:
                take()

    def _question(self, history: History) -> Callable[[], _Answer]:
        """A function that judges what is known now, to be called in a thread."""
        has_one_clock = len({link.name for link in self._links.values()}) == 1
        uncertain = {
            rank: 0.0 if has_one_clock or calls.steps else self._links[rank].clock_error
            for rank, calls in history.ranks.items()
        }
        rounds = list(self._rounds.steps) if self._rounds is not None else []
        is_calm = self._reports < MOST_REPORTS
        return partial(_answer, history, rounds, uncertain, self._waiting(), self._reported, self._reported_at, is_calm)

    def _give_up(self, error: Exception) -> None:
        """Disable straggler detection: an internal error must not end a healthy job."""
        self._is_off = True
        self.screen.info(f"straggler detection is disabled for this job: {internal_error(error)}")

    def _act(self, answer: _Answer) -> None:
        """Report what was found, or examine the cause first."""
        from muster.controller.monitor.rounds import in_all

        now, slow, suspect = time.monotonic(), answer.slow, answer.suspect
        if answer.is_gone and self._reported is not None:
            self._report_recovery(self._reported)
        if answer.is_as_reported or self._examining is not None:
            return
        if suspect is None:
            self._suspect_network(answer.steps, now)
            return
        # The evidence for the slowest suspect remains valid if other suspects have come or gone since.
        is_known = suspect.ranks[0] in self._examined and now - self._examined_at < FRESH
        if is_known and slow is not None:
            self._report_slow(in_all(slow, self._rounds.steps if self._rounds is not None else []))
        elif not is_known and (slow is not None or self._may_suspect(now)):
            self._examining = asyncio.ensure_future(self._examine(suspect))

    def _may_suspect(self, now: float) -> bool:
        """Whether a mere suspicion may trigger an examination now; in a job with noisy steps there are many."""
        self._credit = min(AT_ONCE, self._credit + (now - self._credit_at) / FRESH)
        self._credit_at = now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True

    def _waiting(self) -> dict[int, float]:
        """The share of recent time in which each rank waited."""
        shares = {
            rank: [share for _, share in looks if share is not None]
            for rank, looks in self._looks.items()
            if rank in self._ranks
        }
        return {rank: sum(values) / len(values) for rank, values in shares.items() if values}

    async def _examine(self, suspect: Slow) -> None:
        """Have the agents examine the suspect and some other ranks, then judge again."""
        try:
            with guarded(self._give_up):
                hosts = [self._links[rank].name for rank in (*suspect.ranks, *self._ranks) if rank in self._links]
                answers = await self._look(list(dict.fromkeys(hosts))[: ASKED_HOSTS + 1], suspect.step)
                self._evidence = self._gather(answers)
                self._examined, self._examined_at = set(suspect.ranks), time.monotonic()
        finally:
            self._examining = None
        self._fresh.update(self._ranks)
        self._not_before = 0.0
        self.tick()

    async def _look(self, hosts: Sequence[str], step: float) -> list[tuple[str, Examined]]:
        """The observations of these hosts' agents; hosts that do not answer are missing."""
        shortest, longest = LOOK_FOR
        seconds = min(longest, max(shortest, 1.5 * step))
        links = {link for link in self._links.values() if link.name in hosts and not link.lost}
        answers = await asyncio.gather(*(self._look_at(link, seconds) for link in links))
        return [(link.name, answer) for link, answer in zip(links, answers, strict=True) if answer is not None]

    async def _look_at(self, link: AgentLink, seconds: float) -> Examined | None:
        ranks = [rank for rank, its in self._links.items() if its is link]
        try:
            return await link.request("examine", limit=seconds + 3, ranks=ranks, seconds=seconds)
        except LinkLost:
            return None

    # --- the network ----------------------------------------------------------------------------------------

    def _suspect_network(self, steps: Sequence[Step], now: float) -> None:
        """No rank is late; if all ranks wait for long, the network may be slow."""
        from muster.controller.monitor import network_stall
        from muster.controller.monitor.straggler import middle

        lately = [looks[-1][1] for rank, looks in self._looks.items() if rank in self._ranks]
        known = [share for share in lately if share is not None]
        if len({link.name for link in self._links.values()}) < 2 or len(steps) < 5 or len(known) < len(self._ranks):
            return
        if not steps[-1].number:
            return  # without an optimizer a step is the time between two collectives, which may differ by design
        step, waiting = middle([step.seconds for step in steps[-5:]]), min(known)
        self._best_step = min(self._best_step, step)
        is_slower = step >= network_stall.SLOWER * self._best_step
        if not is_slower and self._reported_network:
            where = " and ".join(self._reported_network)
            self._report(f"the network of {where} is no longer slowing the job down: {step:.2f} s per step", ())
            self._reported_network = ()
        if waiting >= network_stall.WAITING and now - self._network_at >= (SOON if is_slower else NOW_AND_THEN):
            self._network_at = now
            self._examining = asyncio.ensure_future(self._examine_network(step, waiting))

    async def _examine_network(self, step: float, waiting: float) -> None:
        try:
            with guarded(self._give_up):
                await self._judge_network(step, waiting)
        finally:
            self._examining = None

    async def _judge_network(self, step: float, waiting: float) -> None:
        from muster.controller.monitor import network_stall

        links = {link.name: link for link in self._links.values()}
        answers = await self._look(list(links)[:MOST_HOSTS], step)
        addresses = {
            address: name
            for name, link in links.items()
            for interface in link.facts["interfaces"]
            for address in interface["addresses"]
            if not interface["loopback"]
        }
        found = network_stall.slow_network({name: answer["queues"] for name, answer in answers}, addresses)
        # Between two hosts there are always queued bytes: report them only if steps were faster before.
        sure = found is not None and (len(found.hosts) == 1 or step >= network_stall.SLOWER * self._best_step)
        if found is not None and sure and found.hosts != self._reported_network:
            self._reported_network = found.hosts
            ranks = tuple(sorted(rank for rank, link in self._links.items() if link.name in found.hosts))
            best = self._best_step
            self._report(network_stall.sentence(found, step=step, best=best, waiting=waiting, ranks=ranks), ranks)

    # --- reporting ------------------------------------------------------------------------------------------

    def _gather(self, answers: Sequence[tuple[str, Examined]]) -> dict[int, Evidence]:
        from muster.jobs.state import GpuState

        gpus = {(host, gpu["index"]): GpuState(**gpu) for host, answer in answers for gpu in answer["gpus"]}
        seen = {int(rank): evidence for _, answer in answers for rank, evidence in answer["ranks"].items()}
        return {
            rank.rank: {
                **seen[rank.rank],
                "gpu": gpus.get((rank.host, rank.local_rank if rank.gpu is None else rank.gpu)),
                "places": [place for place, _ in self._looks.get(rank.rank, ())],
            }
            for rank in self.status.state().ranks
            if rank.rank in seen
        }

    def _report_slow(self, slow: Slow) -> None:
        from muster.controller.monitor.slow_causes import explain, sentence

        hosts = {rank: self._links[rank].name for rank in slow.ranks}
        self._report(sentence(slow, hosts, explain(slow, self._evidence)), slow.ranks)
        self._reported, self._reported_at, self._reports = slow, time.time(), self._reports + 1
        self.status.slow = slow.ranks

    def _report_recovery(self, slow: Slow) -> None:
        from muster.controller.monitor.slow_causes import gone

        self._report(gone(slow, {rank: self._links[rank].name for rank in slow.ranks}), slow.ranks)
        self._reported, self._examined = None, set()
        self.status.slow = ()

    def _report(self, text: str, ranks: tuple[int, ...]) -> None:
        from muster.jobs.state import Report

        self.screen.warning(text)
        self.status.reports.append(Report(kind="straggler", time=time.time(), sentence=text, ranks=ranks))
