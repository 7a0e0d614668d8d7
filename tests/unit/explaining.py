"""Ends of ranks as the tests of explanations make them."""

from __future__ import annotations

from typing import Any

from muster.controller.diagnosis.explain import Explanation, explain
from muster.controller.diagnosis.failure_facts import Disk
from muster.controller.diagnosis.rank_end import RankEnd

GB = 1 << 30
MB = 1 << 20


def end(rank: int = 0, status: int = 1, message: str = "", kind: str = "RuntimeError", **more: Any) -> RankEnd:
    """A rank on its own host h1, h2, … that failed with an exception, if it has a message."""
    more.setdefault("summary", f"{kind}: {message.splitlines()[0]}" if message else "")
    more.setdefault("host", f"h{rank + 1}")
    return RankEnd(rank=rank, status=status, time=more.pop("time", 10.0), message=message, **more)


def why(first: RankEnd, *others: RankEnd, early: RankEnd | None = None) -> Explanation:
    found = explain(first, [first, *others, *([early] if early else [])], early)
    assert found is not None
    return found


def nothing_is_said(first: RankEnd, *others: RankEnd) -> bool:
    return explain(first, [first, *others]) is None


def disk(path: str = "/ckpt/step.pt", folder: str = "/ckpt", free: int = 0, total: int = 20 * MB, **more: Any) -> Disk:
    return Disk(path=path, folder=folder, free=free, total=total, **more)


ROOM: Any = {"free": 200 * GB, "total": 900 * GB}


def shm(free: int, total: int) -> Disk:
    return Disk(path="/dev/shm", folder="/dev/shm", free=free, total=total)
