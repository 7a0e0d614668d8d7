"""What the ranks of train.py recorded, and what follows from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One line that a rank recorded."""

    what: str
    """start: the script begins; first: its first all_reduce is done; save: it has saved; beat: it is alive; end."""
    time: float
    attempt: int
    rank: int
    host: str
    group: int
    """Identifies a start of all ranks; 0 before the first all_reduce."""
    world: int
    step: int
    pid: int
    """Process id inside the host."""


def read(folder: Path) -> list[Moment]:
    """All lines so far, in the order in which they were written."""
    try:
        text = (folder / "moments").read_text()
    except FileNotFoundError:
        return []
    return [Moment(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def begun(moments: Iterable[Moment], after: float) -> float | None:
    """When all ranks of a start after this time had done their first all_reduce; None if there is no such start."""
    firsts: dict[tuple[int, int], list[float]] = {}
    for moment in moments:
        if moment.what == "first" and moment.time > after:
            firsts.setdefault((moment.group, moment.world), []).append(moment.time)
    return min((max(times) for (_, world), times in firsts.items() if len(times) == world), default=None)


def stale(moments: Sequence[Moment], *, thawed: float | None = None) -> list[Moment]:
    """What ranks of an older attempt recorded after a rank of a newer one had started.

    A host that was frozen for longer than its lease continues where it was, at the time `thawed`: its ranks are alive
    until its agent has ended them, but they must not save any more.
    """
    newest, found = 0, list[Moment]()
    for moment in moments:
        if moment.attempt < newest and not (moment.what == "beat" and thawed and moment.time >= thawed):
            found.append(moment)
        newest = max(newest, moment.attempt)
    return found


def afterlife(moments: Sequence[Moment], host: str, thawed: float) -> float:
    """How long after a thaw ranks of an older attempt were still alive on this host, in seconds."""
    newest = max(moment.attempt for moment in moments)
    return max((0.0, *(m.time - thawed for m in moments if m.host == host and m.attempt < newest)))


def incomplete(words: str, moments: Sequence[Moment]) -> str:
    """Which rank's counter has a gap, a repetition or no end in a job without restarts; empty if none has."""
    ends = {moment.rank: moment.step for moment in moments if moment.what == "end"}
    printed: dict[int, list[int]] = {}
    for rank, step in re.findall(r"^\[\S+ +(\d+)\] step (\d+)$", words, re.MULTILINE):
        printed.setdefault(int(rank), []).append(int(step))
    world = max((moment.world for moment in moments), default=0)
    for rank in range(world):
        steps = printed.get(rank, [])
        if steps != list(range(1, ends.get(rank, 0) + 1)) or not steps:
            odd = next((i for i, step in enumerate(steps) if step != i + 1), len(steps))
            return f"rank {rank} printed {len(steps)} of {ends.get(rank, 0)} lines; wrong from line {odd + 1}"
    return ""
