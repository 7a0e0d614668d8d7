"""Watches a running job: asks the agents where the ranks are when nothing moves, and says what it found.

Nothing is asked as long as the job moves. When a rank has waited for most of --hang-after, the agents tell every few
seconds what each rank uses; only when nobody that is waited for does anything are all stacks taken and judged.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster.logs.screen import Screen
from muster.run.attempt import Attempt
from muster.run.board import Board
from muster.run.fleet import Fleet
from muster.run.link import SUSPECT_AFTER, AgentLink, LinkLost
from muster.run.words import count, tilde
from muster.run.words import ranks as ranks_in_words
from muster.watch.hang import Finding, judge, working
from muster.watch.seen import Seen, seen, works
from muster.watch.stacks import clean
from muster.watch.state import Report
from muster.watch.words import detail, sentence, still_working

LOOK_LIMIT = 4.0
"""Seconds until an agent must have told where its ranks are: their own limits are shorter."""

_TURN = 0.2
"""Seconds between two thoughts."""

_SELDOM = 10.0
"""Seconds between stacks of a job in which somebody works."""

_LONG = 300.0
"""Seconds, and ten times --hang-after, that one rank may work while others wait before it is mentioned."""

_ENOUGH = 3
"""Looks without any work in between that make a hang."""


@dataclass
class _Heard:
    """What a rank has told of itself."""

    host: str
    progress: Mapping[str, Any] | None = None
    moved: float = 0.0
    """When it last moved, on our clock."""
    exit_status: int | None = None

    @property
    def is_pending(self) -> bool:
        """Whether it has called a collective that has not finished, or is creating its process group."""
        told = self.progress or {}
        return told.get("joining", False) or _pending(told.get("groups") or {})


def _pending(groups: Mapping[str, tuple[int, int]]) -> bool:
    return any(begun > finished for begun, finished in groups.values())


class Watcher:
    """The watch over one job."""

    def __init__(
        self, fleet: Fleet, board: Board, screen: Screen, folder: Path, hang_after: float = 30.0, kill: bool = False
    ) -> None:
        self.fleet = fleet
        self.board = board
        self.screen = screen
        self.folder = folder
        self.hang_after = hang_after
        """Seconds without progress that make a hang; 0 for no watch."""
        self.kill = kill
        """End the job when it hangs."""
        self._between = min(5.0, max(0.5, hang_after / 4))
        self._heard: dict[int, _Heard] = {}
        self._looks: deque[tuple[float, dict[int, dict[str, Any]]]] = deque(maxlen=_ENOUGH)
        self._judged = 0.0
        self._mentioned = False
        self._files = 0
        self._taking: asyncio.Future[None] | None = None
        self._found: dict[int, dict[str, Any]] = {}
        """What the last judgement was about."""

    # --- what it hears --------------------------------------------------------------------------------------

    def on_event(self, link: AgentLink, event: Mapping[str, Any]) -> None:
        """Take one event of a host."""
        kind = event["t"]
        if kind == "progress":
            heard = self._heard.setdefault(event["rank"], _Heard(link.name))
            # Its last word and its first have no time of their own.
            moved = link.our_time(event.get("moved", event["time"]))
            heard.progress, heard.moved = event, max(moved, heard.moved)
        elif kind == "exit":
            self._heard.setdefault(event["rank"], _Heard(link.name)).exit_status = event["status"]

    # --- asking ---------------------------------------------------------------------------------------------

    async def look(self, *, deep: bool) -> dict[int, dict[str, Any]]:
        """What the agents see of each rank that runs; ranks of a host that does not answer are missing."""
        answers = await asyncio.gather(*(self._look_at(link, deep) for link in self.fleet.links if not link.lost))
        return {rank: facts for answer in answers for rank, facts in answer.items()}

    async def _look_at(self, link: AgentLink, deep: bool) -> dict[int, dict[str, Any]]:
        try:
            answer = await link.request("stacks", limit=LOOK_LIMIT, deep=deep)
        except LinkLost:
            return {}
        found: dict[int, dict[str, Any]] = {}
        for rank, facts in answer["ranks"].items():
            found[int(rank)] = {**facts, "host": link.name}
            told = facts.get("told")
            heard = self._heard.get(int(rank))
            if told and heard is not None:
                heard.progress = {**(heard.progress or {}), **told, "joining": False}
                heard.moved = max(heard.moved, link.our_time(told["moved"]))
        return found

    async def take_stacks(self) -> Report:
        """Where every rank is now, as a report that is kept; the stacks go into a file of the job's folder too."""
        found = await self.look(deep=True)
        path = self.write_stacks(found)
        report = Report(
            kind="stacks",
            time=time.time(),
            sentence=f"the stacks of {count(len(found), 'rank')} are in {tilde(path)}",
            stacks=_stacks(found),
        )
        self.board.reports.append(report)
        return report

    def stacks_then(self, call: Callable[[], None]) -> None:
        """Take the stacks of what still runs, then do the rest: it may end what they would show."""

        async def both() -> None:
            try:
                if self._heard:
                    self.screen.tell((await self.take_stacks()).sentence)
            finally:
                call()

        self._taking = asyncio.ensure_future(both())

    def write_stacks(self, found: Mapping[int, Mapping[str, Any]], said: str = "") -> Path:
        """Write all stacks into the next stacks-N.txt of the job's folder."""
        self._files += 1
        path = self.folder / f"stacks-{self._files}.txt"
        blocks = [said] if said else []
        for rank, facts in sorted(found.items()):
            blocks.append(f"=== rank {rank} on {facts['host']}, {_outside(facts)}\n{clean(facts['stack'])}".rstrip())
            for child in facts["children"]:
                name = f"--- rank {rank}: child {child['pid']} ({child['command']})"
                blocks.append(f"{name}, {_outside(child)}\n{clean(child['stack'])}".rstrip())
        try:
            path.write_text("\n\n".join(blocks) + "\n")
        except OSError as error:
            self.screen.tell(f"{tilde(path)} cannot be written: {error.strerror}")
        return path

    # --- watching -------------------------------------------------------------------------------------------

    async def watch(self, attempt: Attempt) -> None:
        """Watch the ranks of one attempt until it is cancelled; a bug here ends the watch, not the job."""
        try:
            await asyncio.gather(self._notice_early_ends(attempt), self._watch_for_hangs(attempt))
        except Exception as error:
            self.screen.tell(f"hangs are no longer watched for, by a bug of Muster: {type(error).__name__}: {error}")

    async def _notice_early_ends(self, attempt: Attempt) -> None:
        """Some ranks ended well long ago and others still run: they may wait for those for ever, so say it once."""
        while not attempt.ended_well:
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        if attempt.running:
            ended, running = ranks_in_words(attempt.ended_well), ranks_in_words(attempt.running)
            self.screen.say(f"{ended} ended with exit code 0 over 10 s ago; {running} still running")

    async def _watch_for_hangs(self, attempt: Attempt) -> None:
        self._heard = {
            rank: _Heard(placement.name) for placement in attempt.plan.placements for rank in placement.ranks
        }
        self._forget()
        while self.hang_after > 0:
            await asyncio.sleep(_TURN)
            ranks = await self._find_hang()
            finding = judge(ranks) if ranks else None
            if finding is not None and self._is_certain(finding, ranks):
                said = self._report(finding, ranks)
                if self.kill:
                    attempt.on_hang(said, finding.culprits)
                    return
                await self._until_it_moves(finding)
            elif ranks:
                self._mention(ranks)

    async def _find_hang(self) -> dict[int, Seen]:
        """All that is seen of a job that stands still, or nothing as long as it does not seem to."""
        quiet = self._quiet()
        if quiet < self.hang_after - (_ENOUGH - 1) * self._between or self._is_host_silent():
            self._forget()
            return {}
        now = time.monotonic()
        if self._looks and now - self._looks[-1][0] < self._between:
            return {}
        deep = quiet >= self.hang_after and len(self._looks) >= _ENOUGH - 1
        if deep and self._somebody_works():
            deep = now - self._judged > _SELDOM
        found = await self.look(deep=deep)
        self._looks.append((now, found))
        if not deep or self._quiet() < self.hang_after:
            return {}
        self._judged = now
        ranks = self._seen(found)
        running = [rank for rank, heard in self._heard.items() if heard.exit_status is None]
        if self._is_host_silent() or any(rank not in ranks for rank in running):
            return {}  # a host that does not answer is told by its heartbeat
        self._found = found
        return ranks

    def _quiet(self) -> float:
        """How long the rank has been quiet that waits longest, or all of them where none says that it waits."""
        now = time.time()
        running = [heard for heard in self._heard.values() if heard.exit_status is None]
        waiting = [now - heard.moved for heard in running if heard.is_pending]
        joined = [heard for heard in running if heard.progress is not None]
        everyone = min((now - heard.moved for heard in joined), default=0.0) if len(joined) == len(running) else 0.0
        return max([*waiting, everyone], default=0.0)

    def _is_host_silent(self) -> bool:
        return any(link.lost is not None or link.silence > SUSPECT_AFTER * 0.7 for link in self.fleet.links)

    def _somebody_works(self) -> bool:
        """Whether a rank that does not wait itself did anything lately."""
        free = [rank for rank, heard in self._heard.items() if heard.exit_status is None and not heard.is_pending]
        return any(works(self._looks_at(rank)) for rank in free)

    def _looks_at(self, rank: int) -> list[tuple[float, dict[str, Any]]]:
        return [(when, found[rank]) for when, found in self._looks if rank in found]

    def _seen(self, found: Mapping[int, Mapping[str, Any]]) -> dict[int, Seen]:
        now, gpus = time.time(), self._gpus()
        ranks: dict[int, Seen] = {}
        for rank, heard in self._heard.items():
            told: Mapping[str, Any] = heard.progress or {}
            groups: Mapping[str, Any] = told.get("groups") or {}
            begun = int(groups.get("0", (0, 0))[0]) if heard.progress is not None else None
            quiet = now - heard.moved if heard.moved else 0.0
            if heard.exit_status is not None:
                ranks[rank] = Seen(rank=rank, host=heard.host, exit_status=heard.exit_status, begun=begun, quiet=quiet)
            elif rank in found:
                one = seen(
                    rank,
                    found[rank],
                    self._looks_at(rank),
                    quiet=quiet,
                    joining=told.get("joining", False),
                    begun=begun,
                    place=told.get("place") or "",
                    gpu=gpus.get(rank),
                )
                # One that moved lately goes on, whatever others wait for.
                moves = heard.progress is not None and quiet < self.hang_after * 0.7
                ranks[rank] = replace(one, works=True) if moves and not one.is_stopped else one
        return ranks

    def _gpus(self) -> dict[int, float]:
        """How busy the GPU of each rank is, where that is known."""
        state = self.board.state(history=False)
        use = {(host.name, gpu.index): gpu.use for host in state.hosts for gpu in host.gpus}
        found = ((rank.rank, use.get((rank.host, -1 if rank.gpu is None else rank.gpu))) for rank in state.ranks)
        return {rank: share for rank, share in found if share is not None}

    def _is_certain(self, finding: Finding, ranks: Mapping[int, Seen]) -> bool:
        """Whether those that wait have done so long enough."""
        if finding.culprits or finding.circle:
            return max(ranks[wait.rank].quiet for wait in finding.waits) >= self.hang_after
        return min(ranks[wait.rank].quiet for wait in finding.waits) >= self.hang_after

    def _forget(self) -> None:
        self._looks.clear()
        self._judged, self._mentioned = 0.0, False

    # --- saying ---------------------------------------------------------------------------------------------

    def _report(self, finding: Finding, ranks: Mapping[int, Seen]) -> str:
        said, more = sentence(finding, ranks), detail(finding, ranks)
        path = self.write_stacks(self._found, said)
        self.screen.tell(f"hang: {said}")
        self.screen.show_block(more)
        self.screen.tell(f"the stacks of all ranks are in {tilde(path)}")
        self.board.reports.append(
            Report(
                kind="hang",
                time=time.time(),
                sentence=said,
                ranks=finding.culprits,
                detail=more,
                stacks=_stacks(self._found),
            )
        )
        return said

    async def _until_it_moves(self, finding: Finding) -> None:
        """One report is enough for a hang: wait until one of those in it moves, and say so."""
        concerned = {wait.rank for wait in finding.waits} | set(finding.culprits)
        before = {rank: self._heard[rank].moved for rank in concerned}
        since = min(before[wait.rank] for wait in finding.waits)
        while True:
            await asyncio.sleep(_TURN)
            if all(self._heard[wait.rank].exit_status is not None for wait in finding.waits):
                break
            moved = [self._heard[rank].moved for rank in concerned if self._heard[rank].moved > before[rank] + _TURN]
            if moved:
                self.screen.tell(f"moving again after {min(moved) - since:.0f} s")
                break
        self._forget()

    def _mention(self, ranks: Mapping[int, Seen]) -> None:
        """Say once that a rank has worked for minutes while others wait: nobody can know whether it will ever end."""
        waits, busy = working(ranks)
        if waits and busy and not self._mentioned and self._quiet() > max(_LONG, 10 * self.hang_after):
            self._mentioned = True
            self.screen.say(still_working(waits, [ranks[rank] for rank in busy]))


def _stacks(found: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    return {rank: clean(facts["stack"]) for rank, facts in found.items()}


def _outside(facts: Mapping[str, Any]) -> str:
    where = f", in the kernel's {facts['wchan']}" if facts["wchan"] else ""
    silent = ", its interpreter did not answer" if facts.get("answered") is False else ""
    return f"state {facts['state']}{where}, {facts['cpu_seconds']:.1f} s of CPU{silent}"
