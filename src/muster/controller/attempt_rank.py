"""The state of one rank of a running attempt."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.controller.diagnosis.rank_end import RankEnd
from muster.controller.traceback_folding import TracebackFolder
from muster.output.lines import LineSplitter
from muster.shared.reports import Left, Raised, SysExit

_LAST_LINES = 300
"""Number of stderr lines kept per rank for the verdict: the reason of a crash precedes the stacks of all threads."""


@dataclass
class RankState:
    """The state of one rank while it runs."""

    splitters: dict[int, LineSplitter] = field(default_factory=lambda: {1: LineSplitter(), 2: LineSplitter()})
    folder: TracebackFolder = field(default_factory=TracebackFolder)
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    raised: Raised | None = None
    exited: SysExit | None = None
    left: Left | None = None
    has_joined: bool = False
    """Whether it has created a process group, or began to."""
    done: int = 0
    steps: int = 0
    saves: int = 0
    """Number of files that torch.save has written."""
    groups: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Per process group, the number of the last collective called and of the last one finished."""
    first_collective: float | None = None
    end: RankEnd | None = None
    pieces: list[bytes] = field(default_factory=list[bytes])
    """The pieces received so far of an incomplete pickle."""
    result: bytes | None = None
    """The pickled return value of its function."""
    exception: bytes | None = None
    """The pickled exception of its function."""

    @property
    def place(self) -> str:
        """`train.py:88`, where it failed or left; empty if it has not reported that."""
        failed = self.raised.get("place", "") if self.raised else self.exited["place"] if self.exited else ""
        return failed or (self.left["place"] if self.left else "")

    def take_pieces(self) -> bytes:
        """The complete pickle."""
        whole = b"".join(self.pieces)
        self.pieces.clear()
        return whole
