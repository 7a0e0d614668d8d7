"""Why a rank failed and what to do about it, where that is known: facts of its end in, a sentence and a fix out. Pure.

Silence is better than a wrong explanation: a row speaks only where a text or a fact shows its cause, and an ordinary
exception of the script gets none, because its traceback says all.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.controller.diagnosis.explain import collectives, gpu_failures, host_failures, stdin_failures
from muster.controller.diagnosis.explain.case import Case, Explanation, Why
from muster.controller.diagnosis.rank_end import RankEnd

__all__ = ["ROWS", "Explanation", "explain"]

ROWS: tuple[Why, ...] = (*host_failures.ROWS, *gpu_failures.ROWS, *collectives.ROWS, *stdin_failures.ROWS)
"""All that can be explained, the most certain first: the first that speaks is taken."""


def explain(first: RankEnd, ends: Sequence[RankEnd], early: RankEnd | None = None) -> Explanation | None:
    """Explain the failure of the rank that failed first; None where nothing is known beyond what it said itself."""
    case = Case(first=first, ends=ends, early=early)
    return next((found for why in ROWS if (found := why(case)) is not None), None)
