"""The input and the output of an explanation. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.controller.diagnosis.rank_end import RankEnd
from muster.shared.user_code import is_users


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a rank failed, in one sentence, and what to do about it."""

    sentence: str
    fix: str = ""
    """What to type or change next."""
    row: int = 0
    """Row of the catalog in docs/troubleshooting.md; 0 if it has none."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The first failure, and how all ranks ended."""

    first: RankEnd
    ends: Sequence[RankEnd]
    early: RankEnd | None = None
    """A rank that had ended with exit code 0 although the first failure still needed it."""

    @property
    def waiting(self) -> list[RankEnd]:
        """The ranks that failed in a collective because another rank had left or did not arrive."""
        return [end for end in self.ends if end.failed and end.is_symptom]


Why = Callable[[Case], Explanation | None]
"""Explains one known failure; its docstring quotes the symptom and where it was seen."""

# One frame of a traceback (`line 3252, in all_reduce`) or of the stack that faulthandler prints (`line 3252 in …`).
_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective that a rank was in when it failed."""

    name: str
    place: str
    """`train.py:12`, the line of the user's code; empty if unknown."""


def collective_of(end: RankEnd) -> Call | None:
    """The collective in which a rank failed, from its traceback or from the stack trace of its crash."""
    text = end.traceback or end.last_words
    found = _FRAME.findall(text)
    calls = [name for path, _, name in found if path.endswith("torch/distributed/distributed_c10d.py")]
    if not calls:
        return None
    place = end.place or users_place(text, innermost=-1 if end.traceback else 0)
    return Call(name=calls[0] if end.traceback else calls[-1], place=place)


def users_place(text: str, *, innermost: int = -1) -> str:
    """`train.py:12`, the innermost line of user code in a traceback (-1) or in a stack trace of faulthandler (0)."""
    users = [(path, line) for path, line, _ in _FRAME.findall(text) if is_users(path)]
    if not users:
        return ""
    path, line = users[innermost]
    return f"{path.rpartition('/')[2]}:{line}"


def at(call: Call) -> str:
    """`all_reduce at train.py:12`."""
    return f"{call.name} at {call.place}" if call.place else call.name
