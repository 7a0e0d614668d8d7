"""Explains known failures: why a rank failed and how to fix it. Pure.

No explanation is better than a wrong one: a row applies only where a text or a fact proves the cause. An ordinary
exception of the script gets none, because its traceback is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.controller.diagnosis.explain import collectives, gpu_failures, host_failures, stdin_failures
from muster.controller.diagnosis.explain.case import Case, Explanation, Why
from muster.controller.diagnosis.rank_end import RankEnd

__all__ = ["ROWS", "Explanation", "explain"]

ROWS: tuple[Why, ...] = (*host_failures.ROWS, *gpu_failures.ROWS, *collectives.ROWS, *stdin_failures.ROWS)
"""All explanations, the most certain first; the first that applies is used."""


def explain(first: RankEnd, ends: Sequence[RankEnd], early: RankEnd | None = None) -> Explanation | None:
    """Explain the first failure; None if nothing is known beyond what the rank reported."""
    case = Case(first=first, ends=ends, early=early)
    return next((found for why in ROWS if (found := why(case)) is not None), None)
