"""Detects hangs and reports which ranks cause them.

While the job makes progress, no requests are sent. When a rank has waited for most of --hang-after, the agents report
resource usage every few seconds; stack traces are collected and judged only if no rank that others wait for is working.
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
"""Seconds between two checks."""

_SELDOM = 10.0
"""Seconds between two collections of stack traces while some rank works."""

_LONG = 300.0
"""Seconds (at least ten times --hang-after) that a rank may work while others wait before it is mentioned."""

_ENOUGH = 3
"""Number of observations without any work in between that make a hang."""


class HangMonitor:
    """Watches one attempt for hangs."""

    def __init__(self, monitor: RankMonitor, attempt: Attempt) -> None:
        self.monitor = monitor
        self.attempt = attempt
        self.hang_after = monitor.hang_after
        self.between = min(5.0, max(0.5, self.hang_after / 4))
        """Seconds between two observations of a job without progress."""
        self._looks: deque[tuple[float, dict[int, Sighting]]] = deque(maxlen=_ENOUGH)
        self._judged = 0.0
        self._mentioned: tuple[int, ...] = ()
        """The ranks that have worked for minutes while others wait, once they have been reported."""

    async def watch(self) -> None:
        """Watch until canceled, or until a hang is to end the job."""
        while not self.monitor.unwatched:
            await asyncio.sleep(_TURN)
            ranks = await self._look()
            finding = await asyncio.to_thread(judge, ranks) if ranks else None
            if self.monitor.quiet() < self.hang_after:
                continue  # it made progress while it was judged
            if finding is not None and self._is_certain(finding, ranks):
                said = await self._report(finding, ranks)
                if self.monitor.kill:
                    self.attempt.on_hang(said, finding.culprits)
                    return
                await self._until_it_moves(finding)
            elif ranks:
                await self._mention(ranks)

    async def _look(self) -> dict[int, Seen]:
        """All ranks of a job that may hang; empty while it makes progress or needs more observations."""
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
            return {}  # the heartbeat reports hosts that do not answer
        return ranks

    def _is_host_silent(self) -> bool:
        links = self.monitor.agents.used
        return any(link.lost is not None or link.silence > SUSPECT_AFTER * 0.7 for link in links)

    def _somebody_works(self) -> bool:
        """Whether a rank that is not waiting has worked recently."""
        heard = self.monitor.heard.items()
        free = [rank for rank, one in heard if one.exit_status is None and not one.is_pending]
        return any(works(self._looks_at(rank)) for rank in free)

    def _looks_at(self, rank: int) -> list[tuple[float, Sighting]]:
        return [(when, found[rank]) for when, found in self._looks if rank in found]

    async def _seen(self, found: Mapping[int, Sighting]) -> dict[int, Seen]:
        """All ranks as input for the judge; computed in a thread so that heartbeats continue."""
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
        """GPU utilization by rank, where known."""
        state = self.monitor.status.state(history=False)
        use = {(host.name, gpu.index): gpu.use for host in state.hosts for gpu in host.gpus}
        found = ((rank.rank, use.get((rank.host, -1 if rank.gpu is None else rank.gpu))) for rank in state.ranks)
        return {rank: share for rank, share in found if share is not None}

    def _is_certain(self, finding: Finding, ranks: Mapping[int, Seen]) -> bool:
        """Whether the waiting ranks have waited for at least --hang-after."""
        quiets = [ranks[wait.rank].quiet for wait in finding.waits]
        return (max(quiets) if finding.culprits or finding.circle else min(quiets)) >= self.hang_after

    def _forget(self) -> None:
        self._looks.clear()
        if self._mentioned and self.monitor.status.slow == self._mentioned:
            self.monitor.status.slow = ()
        self._judged, self._mentioned = 0.0, ()

    # --- reporting ------------------------------------------------------------------------------------------

    async def _report(self, finding: Finding, ranks: Mapping[int, Seen]) -> str:
        said, more = await asyncio.to_thread(lambda: (sentence(finding, ranks), detail(finding, ranks)))
        self.monitor.report_hang(said, self._looks[-1][1], finding.culprits, more)
        return said

    async def _until_it_moves(self, finding: Finding) -> None:
        """Report a hang only once: wait until one of its ranks makes progress, and print that."""
        heard = self.monitor.heard
        concerned = {wait.rank for wait in finding.waits} | set(finding.culprits)
        before = {rank: heard[rank].moved for rank in concerned}
        since = self.monitor.status.hung_since = min(before[wait.rank] for wait in finding.waits)

        def moved() -> list[float]:
            return [heard[rank].moved for rank in concerned if heard[rank].moved > before[rank] + _TURN]

        try:
            while not moved() and not all(heard[wait.rank].exit_status is not None for wait in finding.waits):
                await asyncio.sleep(_TURN)
        finally:  # a job that ends soon after it resumed cancels this task
            self.monitor.status.hung_since = None
            if moved():
                self.monitor.screen.warning(f"the job is making progress again after {min(moved()) - since:.0f} s")
        self._forget()

    async def _mention(self, ranks: Mapping[int, Seen]) -> None:
        """Report once that a rank has worked for minutes while others wait; it may or may not finish."""
        if self._mentioned or self.monitor.quiet() <= max(_LONG, 10 * self.hang_after):
            return
        waits, busy = await asyncio.to_thread(working, ranks)
        if waits and busy:
            self._mentioned = self.monitor.status.slow = busy
            said = still_working(waits, [ranks[rank] for rank in busy])
            more = detail(Finding(waits=waits, culprits=busy), ranks)
            self.monitor.report_busy(said, self._looks[-1][1], busy, more)


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
    """Combine what is known of one rank; one that made progress less than `moving` seconds ago counts as working."""
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
