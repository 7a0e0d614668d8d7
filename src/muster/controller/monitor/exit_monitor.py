"""Watches ranks whose script has ended, and reports those that do not exit with what they wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from muster.controller.attempt import Attempt
from muster.controller.monitor.observation import Sighting, works
from muster.controller.monitor.rank_monitor import RankMonitor
from muster.controller.monitor.stack_text import blocking_frame
from muster.text import rank_list

_TURN = 0.5
"""Seconds between two checks."""

_NOTICE = 5.0
"""Seconds after the end of its script at which a rank that has not exited is reported."""


class ExitMonitor:
    """Watches how the ranks of one attempt exit."""

    def __init__(self, monitor: RankMonitor, attempt: Attempt) -> None:
        self.monitor = monitor
        self.attempt = attempt
        self._looks: list[tuple[float, dict[int, Sighting]]] = []
        self._noticed: set[int] = set()
        self._reported: set[int] = set()

    async def watch(self) -> None:
        """Watch until canceled, or until a hang is to end the job.

        A delay of a few seconds is worth a message but is not a hang: torch.compile waits for its worker processes.
        """
        notice = min(_NOTICE, self.monitor.hang_after)
        while True:
            await asyncio.sleep(_TURN)
            late = [rank for rank in self._late(notice) if rank not in self._noticed]
            if late:
                self._noticed.update(late)
                self.monitor.screen.warning(self._sentence(late, await self._look()))
            hung = [rank for rank in self._late(self.monitor.hang_after) if rank not in self._reported]
            if hung and await self._works(hung):
                await asyncio.sleep(_NOTICE)
            elif hung:
                self._reported.update(hung)
                sentence = self._sentence(hung, self._looks[-1][1])
                self.monitor.report_hang(sentence, self._looks[-1][1], hung)
                self.monitor.status.hung_since = min(self.monitor.heard[rank].finished for rank in hung)
                if self.monitor.kill:
                    self.attempt.on_hang(sentence, hung)
                    return

    def _late(self, seconds: float) -> list[int]:
        """The ranks whose script ended more than `seconds` ago and whose process still runs."""
        now = time.time()
        heard = self.monitor.heard.items()
        return [rank for rank, one in heard if one.is_finishing and now - one.finished > seconds]

    async def _look(self) -> dict[int, Sighting]:
        found = await self.monitor.look(deep=True)
        self._looks = [*self._looks[-1:], (time.monotonic(), found)]
        return found

    async def _works(self, ranks: Sequence[int]) -> bool:
        """Whether one of the ranks has used the CPU or a disk since the last check: it may be writing its results."""
        await self._look()
        return any(works([(when, found[rank]) for when, found in self._looks if rank in found]) for rank in ranks)

    def _sentence(self, ranks: Sequence[int], found: Mapping[int, Sighting]) -> str:
        seconds = time.time() - min(self.monitor.heard[rank].finished for rank in ranks)
        frame = blocking_frame(found[ranks[0]]["stack"] if ranks[0] in found else "")
        has = "have" if len(ranks) > 1 else "has"
        return (
            f"{rank_list(ranks)} finished {'their' if len(ranks) > 1 else 'its'} script {seconds:.0f} s ago but "
            f"{has} not exited: rank {ranks[0]} is {frame}"
        )
