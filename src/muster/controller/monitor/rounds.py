"""Straggler detection from the share of time that each rank spends in collectives. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from muster.controller.monitor.straggler import CHANGE, LOOKS, WARM_UP, Slow, Step, judge, lags_of, mean, middle


class Rounds:
    """Collects the share of time that ranks spend in collectives, which is coarse but covers all collectives.

    If a step has many blocking collectives (gradient accumulation, FSDP, tensor parallelism), a rank may be a little
    late at each of them. A round is the time in which every rank has made a step and reported how much it waited.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        """The rounds so far, as steps in which a rank's lag is how much less it waited than the others."""
        self._last: dict[int, tuple[float, int]] = {}
        """For each rank, the time of its last report and its step count then."""
        self._waited: dict[int, list[tuple[float, float]]] = {}
        """For each rank, the reported seconds of this round, and how many of them it waited."""
        self._made: dict[int, int] = {}
        self._ready: set[int] = set()
        """The ranks that have made a step in this round."""

    def add(self, rank: int, time: float, steps: int, waiting: float | None, ranks: Collection[int]) -> None:
        """Add a report of one of `ranks`."""
        before, made = self._last.get(rank, (time, steps))
        self._last[rank] = (time, steps)
        if waiting is None or time <= before:
            return
        self._waited.setdefault(rank, []).append((time - before, waiting * (time - before)))
        self._made[rank] = self._made.get(rank, 0) + steps - made
        if self._made[rank] >= 1:
            self._ready.add(rank)
        if len(ranks) < 2:
            return  # the other ranks have not reported yet, or have ended
        if len(self._ready) < len(ranks) or not self._ready.issuperset(ranks):
            return  # some rank evaluates, saves or compiles
        totals = {each: [sum(column) for column in zip(*self._waited[each], strict=True)] for each in ranks}
        lags = {
            each: -lag
            for each, lag in lags_of({each: waited / all_ for each, (all_, waited) in totals.items()}).items()
        }
        if min(steps for _, steps in self._last.values()) > WARM_UP:
            self.steps.append(Step(number=len(self.steps) + 1, end=time, seconds=1.0, lags=lags))
            del self.steps[: -2 * LOOKS[-1]]
        self._waited, self._made, self._ready = {}, {}, set()


def judge_waiting(rounds: Sequence[Step], steps: Sequence[Step]) -> Slow | None:
    """The ranks that wait significantly less than the others, with the durations of real steps."""
    slow = judge(rounds, looks=CHANGE)
    if slow is None or not steps:
        return None
    seconds = middle([step.seconds for step in steps[-CHANGE[0] :]])
    return replace(slow, step=seconds, others=seconds * slow.others / slow.step, by_waiting=True)


def in_all(slow: Slow, rounds: Sequence[Step]) -> Slow:
    """A straggler with its delay taken from how much less it waits, if that is clearly more."""
    lags = [round_.lags.get(slow.ranks[0], 0.0) for round_ in rounds[-CHANGE[0] :]]
    if len(lags) < CHANGE[0] // 2 or mean(lags) < 1.5 * (1 - slow.others / slow.step):
        return slow
    return replace(slow, others=slow.step * (1 - min(0.99, mean(lags))))
