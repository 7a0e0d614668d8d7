"""Finds out that a job hangs, and says who keeps it from going on.

Nothing is asked as long as the job moves. When a rank has waited for most of --hang-after, the agents tell every few
seconds what each rank uses; only when nobody that is waited for does anything are all stacks taken and judged.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from muster.controller.attempt import Attempt
from muster.controller.links.link import SUSPECT_AFTER
from muster.controller.monitor.hang import Finding, judge, working
from muster.controller.monitor.hang_text import detail, sentence, still_working
from muster.controller.monitor.observation import Looks, Seen, Sighting, seen, works
from muster.controller.monitor.rank_monitor import HeardRank, RankMonitor

_TURN = 0.2
"""Seconds between two thoughts."""

_SELDOM = 10.0
"""Seconds between stacks of a job in which somebody works."""

_LONG = 300.0
"""Seconds, and ten times --hang-after, that one rank may work while others wait before it is mentioned."""

_ENOUGH = 3
"""Looks without any work in between that make a hang."""


class HangMonitor:
    """The watch over one attempt."""

    def __init__(self, monitor: RankMonitor, attempt: Attempt) -> None:
        self.monitor = monitor
        self.attempt = attempt
        self.hang_after = monitor.hang_after
        self.between = min(5.0, max(0.5, self.hang_after / 4))
        """Seconds between two looks at a job that stands still."""
        self._looks: deque[tuple[float, dict[int, Sighting]]] = deque(maxlen=_ENOUGH)
        self._judged = 0.0
        self._mentioned = False

    async def watch(self) -> None:
        """Watch until it is canceled, or the job is to be ended."""
        while not self.monitor.unwatched:
            await asyncio.sleep(_TURN)
            ranks = await self._look()
            finding = await asyncio.to_thread(judge, ranks) if ranks else None
            if self.monitor.quiet() < self.hang_after:
                continue  # it has moved while it was judged
            if finding is not None and self._is_certain(finding, ranks):
                said = await self._report(finding, ranks)
                if self.monitor.kill:
                    self.attempt.on_hang(said, finding.culprits)
                    return
                await self._until_it_moves(finding)
            elif ranks:
                await self._mention(ranks)

    async def _look(self) -> dict[int, Seen]:
        """All that is seen of a job that stands still; nothing as long as it does not seem to."""
        quiet = self.monitor.quiet()
        soon = max(self.hang_after * 0.3, self.hang_after - (_ENOUGH - 1) * self.between)
        if quiet < soon or self._is_host_silent():
            self._forget()
            return {}
        now = time.monotonic()
        if self._looks and now - self._looks[-1][0] < self.between:
            return {}
        deep = quiet >= self.hang_after and len(self._looks) >= _ENOUGH - 1
        if deep and self._somebody_works():
            deep = now - self._judged > _SELDOM
        found = await self.monitor.look(deep=deep)
        self._looks.append((now, found))
        if not deep or self.monitor.quiet() < self.hang_after:
            return {}
        self._judged = now
        ranks = await self._seen(found)
        running = [rank for rank, heard in self.monitor.heard.items() if heard.exit_status is None]
        if self._is_host_silent() or any(rank not in ranks for rank in running):
            return {}  # a host that does not answer is told by its heartbeat
        return ranks

    def _is_host_silent(self) -> bool:
        links = self.monitor.agents.links
        return any(link.lost is not None or link.silence > SUSPECT_AFTER * 0.7 for link in links)

    def _somebody_works(self) -> bool:
        """Whether a rank that does not wait itself did anything lately."""
        heard = self.monitor.heard.items()
        free = [rank for rank, told in heard if told.exit_status is None and not told.is_pending]
        return any(works(self._looks_at(rank)) for rank in free)

    def _looks_at(self, rank: int) -> list[tuple[float, Sighting]]:
        return [(when, found[rank]) for when, found in self._looks if rank in found]

    async def _seen(self, found: Mapping[int, Sighting]) -> dict[int, Seen]:
        """All ranks as the judge sees them; made in a thread, since the heartbeats must go on meanwhile."""
        gpus = self._gpus()
        known = {rank: (copy(heard), self._looks_at(rank)) for rank, heard in self.monitor.heard.items()}
        now, moving = time.time(), self.hang_after * 0.7

        def see() -> dict[int, Seen]:
            return {
                rank: _see(rank, heard, found.get(rank), looks, gpus.get(rank), now=now, moving=moving)
                for rank, (heard, looks) in known.items()
                if heard.exit_status is not None or rank in found
            }

        return await asyncio.to_thread(see)

    def _gpus(self) -> dict[int, float]:
        """How busy the GPU of each rank is, where that is known."""
        state = self.monitor.status.state(history=False)
        use = {(host.name, gpu.index): gpu.use for host in state.hosts for gpu in host.gpus}
        found = ((rank.rank, use.get((rank.host, -1 if rank.gpu is None else rank.gpu))) for rank in state.ranks)
        return {rank: share for rank, share in found if share is not None}

    def _is_certain(self, finding: Finding, ranks: Mapping[int, Seen]) -> bool:
        """Whether those that wait have done so long enough."""
        quiets = [ranks[wait.rank].quiet for wait in finding.waits]
        return (max(quiets) if finding.culprits or finding.circle else min(quiets)) >= self.hang_after

    def _forget(self) -> None:
        self._looks.clear()
        self._judged, self._mentioned = 0.0, False

    # --- saying ---------------------------------------------------------------------------------------------

    async def _report(self, finding: Finding, ranks: Mapping[int, Seen]) -> str:
        said, more = await asyncio.to_thread(lambda: (sentence(finding, ranks), detail(finding, ranks)))
        self.monitor.report_hang(said, self._looks[-1][1], finding.culprits, more)
        return said

    async def _until_it_moves(self, finding: Finding) -> None:
        """One report is enough for a hang: wait until one of those in it moves, and say so."""
        heard = self.monitor.heard
        concerned = {wait.rank for wait in finding.waits} | set(finding.culprits)
        before = {rank: heard[rank].moved for rank in concerned}
        since = self.monitor.status.hung_since = min(before[wait.rank] for wait in finding.waits)

        def moved() -> list[float]:
            return [heard[rank].moved for rank in concerned if heard[rank].moved > before[rank] + _TURN]

        try:
            while not moved() and not all(heard[wait.rank].exit_status is not None for wait in finding.waits):
                await asyncio.sleep(_TURN)
        finally:  # a job that comes to its end soon after it moved cancels this
            self.monitor.status.hung_since = None
            if moved():
                self.monitor.screen.warning(f"the job is making progress again after {min(moved()) - since:.0f} s")
        self._forget()

    async def _mention(self, ranks: Mapping[int, Seen]) -> None:
        """Say once that a rank has worked for minutes while others wait: nobody can know whether it will ever end."""
        if self._mentioned or self.monitor.quiet() <= max(_LONG, 10 * self.hang_after):
            return
        waits, busy = await asyncio.to_thread(working, ranks)
        if waits and busy:
            self._mentioned = True
            self.monitor.screen.info(still_working(waits, [ranks[rank] for rank in busy]))


def _see(
    rank: int,
    heard: HeardRank,
    facts: Sighting | None,
    looks: Looks,
    gpu: float | None,
    *,
    now: float,
    moving: float,
) -> Seen:
    """One rank; one that moved less than `moving` seconds ago goes on, whatever others wait for."""
    begun = heard.groups.get("0", (0, 0))[0] if heard.has_joined else None
    quiet = now - heard.moved if heard.moved else 0.0
    if heard.exit_status is not None or facts is None:
        return Seen(rank=rank, host=heard.host, exit_status=heard.exit_status, begun=begun, quiet=quiet)
    one = seen(
        rank,
        facts,
        looks,
        quiet=quiet,
        joining=heard.joining,
        begun=begun,
        place=heard.place,
        gpu=gpu,
    )
    moves = heard.has_joined and quiet < moving
    return replace(one, works=True) if moves and not one.is_stopped else one
