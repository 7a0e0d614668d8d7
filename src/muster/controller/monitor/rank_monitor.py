"""Watches a running job: receives the progress of its ranks, and asks the agents where the ranks are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.debug_log import guarded, internal_error
from muster.controller.events import EventStream
from muster.controller.links.link import AgentLink, LinkLost
from muster.controller.monitor.job_status import JobStatus
from muster.output.lines import as_bytes
from muster.output.screen import Screen
from muster.shared.events import Exit, Unseen
from muster.shared.replies import ProcessView
from muster.shared.reports import Holding, Late, Left, Progress, Raised, RecordedGroup, Released, SysExit, Unwatched
from muster.text import count, rank_list, tilde

if TYPE_CHECKING:
    from muster.controller.monitor.observation import Sighting
    from muster.jobs.state import Report

LOOK_LIMIT = 4.0
"""Seconds until an agent must have reported where its ranks are; the agents' own limits are shorter."""


_SEEMS_STUCK = 3.0
"""Seconds without progress after which Ctrl-C saves stack traces."""

_LAST_WORDS = 0.25
"""Seconds to wait for the exceptions of other ranks, which name the line of the call better than a stack trace."""


@dataclass
class HeardRank:
    """What a rank has reported about itself."""

    host: str
    has_joined: bool = False
    """Whether it has reported progress: it has a process group, or is creating one."""
    groups: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By process group, the number of the last collective called and of the last one finished."""
    joining: bool = False
    """It is creating its process group."""
    place: str = ""
    """Where its code was at its last report: `train.py:88 in step`."""
    moved: float = 0.0
    """When it last made progress, in controller time."""
    exit_status: int | None = None
    calls: Mapping[str, RecordedGroup] | None = None
    """Its last collectives, reported with the exception that ended it."""
    raised_at: str = ""
    """Where that exception was raised: `train.py:88`."""
    finished: float = 0.0
    """When its script ended, in controller time; 0 while it runs."""
    is_held: bool = False
    """It has finished and waits for other ranks that are still creating a process group with it."""

    @property
    def is_finishing(self) -> bool:
        """Whether its script has ended, but its process still runs without being held by Muster."""
        return self.finished > 0 and self.exit_status is None and not self.is_held

    @property
    def is_pending(self) -> bool:
        """Whether it has called a collective that has not finished, or is creating its process group."""
        return self.joining or any(begun > finished for begun, finished in self.groups.values())


class RankMonitor:
    """Watches the ranks of one job."""

    def __init__(
        self,
        agents: Agents,
        status: JobStatus,
        screen: Screen,
        folder: Path,
        hang_after: float = 30.0,
        kill: bool = False,
    ) -> None:
        self.agents = agents
        self.status = status
        self.screen = screen
        self.folder = folder
        self.hang_after = hang_after
        """Seconds without progress that make a hang; 0 disables hang detection."""
        self.kill = kill
        """End the job when it hangs."""
        self.heard: dict[int, HeardRank] = {}
        """What each rank of the running attempt has reported."""
        self.unwatched = ""
        """Why the ranks cannot report their progress; empty if they can."""
        self._unseen: set[str] = set()
        """Problems that have been reported; each is printed only for the first host or rank."""
        self._files = 0
        self._taking: set[asyncio.Future[None]] = set()

    # --- events ---------------------------------------------------------------------------------------------

    def subscribe(self, events: EventStream, observer: str) -> None:
        """Subscribe to the events of the ranks."""
        events.subscribe(Progress, self._on_progress, observer=observer)
        events.subscribe(Unwatched, self._on_unwatched, observer=observer)
        events.subscribe(Unseen, self._on_unseen, observer=observer)
        events.subscribe(Raised, self._on_exception, observer=observer)
        events.subscribe(Left, self._on_finished, observer=observer)
        events.subscribe(SysExit, self._on_finished, observer=observer)
        events.subscribe(Holding, self._on_held, observer=observer)
        events.subscribe(Released, self._on_released, observer=observer)
        events.subscribe(Late, self._on_late, observer=observer)
        events.subscribe(Exit, self._on_exit, observer=observer)

    def _one(self, link: AgentLink, rank: int) -> HeardRank:
        return self.heard.setdefault(rank, HeardRank(link.name))

    def _on_progress(self, link: AgentLink, event: Progress) -> None:
        one = self._one(link, event["rank"])
        # The first and the last report of a rank have no `moved`.
        moved = link.our_time(event.get("moved", event["time"]))
        one.has_joined, one.moved = True, max(moved, one.moved)
        one.groups, one.joining = event.get("groups", {}), event.get("joining", False)
        one.place = event.get("place", "")

    def _on_unwatched(self, link: AgentLink, event: Unwatched) -> None:
        if not self.unwatched:
            self.unwatched = event["why"]
            self.screen.info(f"hang and straggler detection is disabled for this job: {self.unwatched}")

    def _on_unseen(self, link: AgentLink, event: Unseen) -> None:
        if event["what"] not in self._unseen:
            self._unseen.add(event["what"])
            self.screen.info(f"{link.name}: could not determine {event['what']} ({event['why']}); the job continues")

    def _on_exception(self, link: AgentLink, event: Raised) -> None:
        one = self._one(link, event["rank"])
        one.calls, one.raised_at = event.get("calls"), event.get("place", "")

    def _on_finished(self, link: AgentLink, event: Left | SysExit) -> None:
        self._one(link, event["rank"]).finished = time.time()

    def _on_exit(self, link: AgentLink, event: Exit) -> None:
        self._one(link, event["rank"]).exit_status = event["status"]

    def _on_released(self, link: AgentLink, event: Released) -> None:
        """A finished rank no longer waits for others."""
        one = self._one(link, event["rank"])
        one.is_held, one.finished = False, time.time()

    def _on_held(self, link: AgentLink, event: Holding) -> None:
        """A finished rank waits for others that are still creating a process group with it."""
        one = self._one(link, event["rank"])
        one.is_held, one.finished = True, time.time()
        if "held" in self._unseen:
            return
        self._unseen.add("held")  # the others wait for the same ranks
        running = {rank: heard for rank, heard in self.heard.items() if not heard.finished}
        joining = [rank for rank, heard in running.items() if heard.joining or not heard.has_joined]
        others = rank_list(joining or sorted(running)) if running else "other ranks"
        self.screen.info(
            f"rank {event['rank']} on {link.name} has finished and is waiting up to {event['limit']:.0f} s "
            f"for {others} to create the process group"
        )

    def _on_late(self, link: AgentLink, event: Late) -> None:
        """A script has set environment variables that a forked rank no longer reads."""
        new = [name for name in event["names"] if name not in self._unseen]
        if new:
            self._unseen.update(new)
            self.screen.warning(
                f"rank {event['rank']} set {', '.join(new)} before importing torch, but torch was imported before the "
                "rank started; use --no-zygote to make it take effect"
            )

    def quiet(self) -> float:
        """Seconds since the longest-waiting rank made progress, or since any rank did if none is known to wait."""
        now = time.time()
        running = [heard for heard in self.heard.values() if heard.exit_status is None]
        waiting = [now - heard.moved for heard in running if heard.is_pending]
        joined = [heard for heard in running if heard.has_joined]
        everyone = min((now - heard.moved for heard in joined), default=0.0) if len(joined) == len(running) else 0.0
        return max([*waiting, everyone], default=0.0)

    @property
    def seems_stuck(self) -> bool:
        """Whether the job seems to hang and no stack traces are being collected."""
        return self.quiet() > _SEEMS_STUCK and not self._taking

    # --- requests -------------------------------------------------------------------------------------------

    async def look(self, *, deep: bool) -> dict[int, Sighting]:
        """What the agents observe of each running rank; ranks of a host that does not answer are missing."""
        answers = await asyncio.gather(*(self._look_at(link, deep) for link in self.agents.used if not link.lost))
        return {rank: found for answer in answers for rank, found in answer.items()}

    async def _look_at(self, link: AgentLink, deep: bool) -> dict[int, Sighting]:
        try:
            answer = await link.request("stacks", limit=LOOK_LIMIT, deep=deep)
        except LinkLost:
            return {}
        found: dict[int, Sighting] = {int(rank): {**view, "host": link.name} for rank, view in answer["ranks"].items()}
        for rank, sighting in found.items():
            report = sighting.get("self_report")
            heard = self.heard.get(rank)
            if report and heard is not None:
                heard.has_joined, heard.groups, heard.joining = True, report["groups"], report["joining"]
                heard.place = report["place"]
                heard.moved = max(heard.moved, link.our_time(report["moved"]))
        return found

    async def take_stacks(self) -> Report:
        """Collect the stack traces of all ranks, write them to a file in the job directory, and keep a report."""
        found = await self.look(deep=True)
        path = self.write_stacks(found)
        return self._keep("stacks", f"stack traces of {count(len(found), 'rank')}: {tilde(path)}", found)

    async def compare_calls(self, attempt: Attempt) -> None:
        """Before the other ranks are stopped: if a rank failed in a collective, check for mismatched calls."""
        if not attempt.failed_in_collective:
            return
        from muster.controller.monitor.hang import last_calls_differ
        from muster.controller.monitor.hang_text import sentence_of_differing
        from muster.controller.monitor.observation import Seen, groups_of, last_seen_at
        from muster.controller.monitor.stack_text import training_thread

        found = await self.look(deep=True)
        await asyncio.sleep(_LAST_WORDS)
        ranks: dict[int, Seen] = {}
        for rank, heard in self.heard.items():
            view = found.get(rank)
            calls = heard.calls or (view.get("recorder") if view else None)
            groups = None if calls is None else groups_of(calls)
            if groups is not None and heard.calls is not None:
                groups = last_seen_at(heard.raised_at, groups)
            frames = training_thread(view["stack"] if view else "")
            ranks[rank] = Seen(rank=rank, host=heard.host, groups=groups, frames=frames)
        differing = last_calls_differ(ranks)
        if differing is not None:
            attempt.differing = sentence_of_differing(differing, ranks)

    def stacks_then(self, call: Callable[[], None]) -> None:
        """Save the stack traces of running ranks, then call `call`, which may end them."""

        async def both() -> None:
            try:
                with guarded(lambda error: self.report_bug("could not save stack traces", error)):
                    if self.heard:
                        self.screen.warning((await self.take_stacks()).sentence)
            finally:
                call()

        taking = asyncio.ensure_future(both())
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)

    def write_stacks(self, found: Mapping[int, Sighting], said: str = "") -> Path:
        """Write all stack traces to the next stacks-N.txt in the job directory."""
        from muster.controller.monitor.stack_text import clean

        self._files += 1
        path = self.folder / f"stacks-{self._files}.txt"
        blocks = [said] if said else []
        for rank, view in sorted(found.items()):
            silent = ", its interpreter did not respond" if view["answered"] is False else ""
            name = f"=== rank {rank} on {view['host']}, {_outside(view)}{silent}"
            blocks.append(f"{name}\n{clean(view['stack'])}".rstrip())
            for child in view["children"]:
                name = f"--- rank {rank}: child {child['pid']} ({child['command']})"
                blocks.append(f"{name}, {_outside(child)}\n{clean(child['stack'])}".rstrip())
        try:
            path.write_bytes(as_bytes("\n\n".join(blocks) + "\n"))
        except OSError as error:
            self.screen.warning(f"could not write {tilde(path)}: {error.strerror}")
        return path

    def report_hang(self, said: str, found: Mapping[int, Sighting], ranks: Sequence[int], detail: str = "") -> None:
        """Print a hang report, write the stack traces, and keep both for other commands."""
        path = self.write_stacks(found, said)
        self.screen.failure(f"hang: {said}")
        self.screen.show_block(detail)
        self.screen.notice(f"stack traces of all ranks: {tilde(path)}")
        if not self.kill:
            self.screen.notice("The job keeps running; use --on-hang kill to end hung jobs")
        self._keep("hang", said, found, ranks, detail)

    def report_busy(self, said: str, found: Mapping[int, Sighting], ranks: Sequence[int], detail: str) -> None:
        """Print that ranks have worked for minutes while others wait, and keep it for other commands."""
        self.screen.info(said)
        self._keep("straggler", said, found, ranks, detail)

    def _keep(
        self,
        kind: Literal["hang", "straggler", "stacks"],
        sentence: str,
        found: Mapping[int, Sighting],
        ranks: Sequence[int] = (),
        detail: str = "",
    ) -> Report:
        from muster.controller.monitor.stack_text import clean
        from muster.jobs.state import Report

        stacks = {rank: clean(view["stack"]) for rank, view in found.items()}
        report = Report(
            kind=kind, time=time.time(), sentence=sentence, ranks=tuple(ranks), detail=detail, stacks=stacks
        )
        # A state is sent and written whole: of stack traces that users asked for, it has only the newest.
        self.status.reports[:] = [
            replace(other, stacks={}) if kind == other.kind == "stacks" else other for other in self.status.reports
        ]
        self.status.reports.append(report)
        return report

    # --- attempts -------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> None:
        """The ranks of an attempt are about to start."""
        self.heard = {rank: HeardRank(place.name) for place in attempt.plan.placements for rank in place.ranks}

    def report_bug(self, effect: str, error: Exception) -> None:
        """Print what no longer works because of an internal error."""
        self.screen.warning(f"{effect}: {internal_error(error)}")

    async def notice_early_ends(self, attempt: Attempt) -> None:
        """Print once that some ranks exited 10 s ago while others still run, which may wait for them forever."""
        while not attempt.ended_well:
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        if attempt.running:
            ended, running = rank_list(attempt.ended_well), rank_list(attempt.running)
            be = "are" if len(attempt.running) > 1 else "is"
            self.screen.info(f"{ended} exited with exit code 0 more than 10 s ago; {running} {be} still running")


def _outside(view: ProcessView) -> str:
    where = f", in kernel function {view['wchan']}" if view["wchan"] else ""
    return f"state {view['state']}{where}, {view['cpu_seconds']:.1f} s of CPU"
