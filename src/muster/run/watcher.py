"""Watches a running job: asks the agents where the ranks are, and says what it found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.logs.screen import Screen
from muster.run.board import Board
from muster.run.fleet import Fleet
from muster.run.link import AgentLink, LinkLost
from muster.run.words import count, tilde
from muster.watch.stacks import clean
from muster.watch.state import Report

LOOK_LIMIT = 4.0
"""Seconds until an agent must have told where its ranks are: their own limits are shorter."""


class Watcher:
    """The watch over one job."""

    def __init__(self, fleet: Fleet, board: Board, screen: Screen, folder: Path) -> None:
        self.fleet = fleet
        self.board = board
        self.screen = screen
        self.folder = folder
        self._files = 0

    async def look(self, *, deep: bool) -> dict[int, dict[str, Any]]:
        """What the agents see of each rank that runs; ranks of a host that does not answer are missing."""
        answers = await asyncio.gather(*(self._look_at(link, deep) for link in self.fleet.links if not link.lost))
        return {rank: facts for answer in answers for rank, facts in answer.items()}

    async def _look_at(self, link: AgentLink, deep: bool) -> dict[int, dict[str, Any]]:
        try:
            answer = await link.request("stacks", limit=LOOK_LIMIT, deep=deep)
        except LinkLost:
            return {}
        return {int(rank): {**facts, "host": link.name} for rank, facts in answer["ranks"].items()}

    async def take_stacks(self) -> Report:
        """Where every rank is now, as a report that is kept; the stacks go into a file of the job's folder too."""
        seen = await self.look(deep=True)
        path = self.write_stacks(seen)
        report = Report(
            kind="stacks",
            time=time.time(),
            sentence=f"the stacks of {count(len(seen), 'rank')} are in {tilde(path)}",
            stacks={rank: clean(facts["stack"]) for rank, facts in seen.items()},
        )
        self.board.reports.append(report)
        return report

    def write_stacks(self, seen: Mapping[int, Mapping[str, Any]], sentence: str = "") -> Path:
        """Write all stacks into the next stacks-N.txt of the job's folder."""
        self._files += 1
        path = self.folder / f"stacks-{self._files}.txt"
        blocks = [sentence] if sentence else []
        for rank, facts in sorted(seen.items()):
            blocks.append(f"=== rank {rank} on {facts['host']}, {_outside(facts)}\n{clean(facts['stack'])}".rstrip())
            for child in facts["children"]:
                name = f"--- rank {rank}: child {child['pid']} ({child['command']})"
                blocks.append(f"{name}, {_outside(child)}\n{clean(child['stack'])}".rstrip())
        try:
            path.write_text("\n\n".join(blocks) + "\n")
        except OSError as error:
            self.screen.tell(f"{tilde(path)} cannot be written: {error.strerror}")
        return path


def _outside(facts: Mapping[str, Any]) -> str:
    where = f", in the kernel's {facts['wchan']}" if facts["wchan"] else ""
    silent = ", its interpreter did not answer" if facts.get("answered") is False else ""
    return f"state {facts['state']}{where}, {facts['cpu_seconds']:.1f} s of CPU{silent}"
