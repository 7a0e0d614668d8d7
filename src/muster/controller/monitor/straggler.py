"""Straggler detection from the times at which ranks arrive at the same collectives. Pure.

A collective ends for all ranks when the last one arrives, so step end times carry no information, but arrival times do.
A rank's lag at a collective is measured against the median arrival of the other ranks, and its lag in a step is the
largest of these: the buckets of one backward pass are called without waiting, so a rank that is late at the first
bucket is late at all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.shared.reports import Arrivals

SLOWER = 0.09
"""Minimum slowdown before a rank is reported; 9 % rather than 10 % to absorb measurement error."""

EACH = 0.06
"""Minimum slowdown in most individual slices; a slowdown in few of them is an evaluation, checkpoint or compilation."""

GONE = 0.04
"""Slowdown below which a reported rank counts as recovered."""

SMALLEST = 0.002
"""Minimum lag in seconds; less may be thread wake-up latency."""

CLIP = 0.3
"""Maximum slowdown that one slice contributes, so that one very long step does not make a rank a straggler."""

LOOKS = (4, 6, 10, 20)
"""Numbers of slices to judge by; the noisier the steps, the more slices are needed."""

SUSPECT = (3,)
"""Number of slices after which a suspected straggler is examined."""

CHANGE = (10, 20)
"""Numbers of slices after which a report may change."""

ODDS = 200_000
"""Accept one false report in this many judgments per rank; there is about one judgment per second."""

SHORT_STEP, SHORT_SLICE = 0.2, 0.75
"""A slice is one step, or SHORT_SLICE seconds of steps if a step takes less than SHORT_STEP seconds."""

WARM_UP = 3
"""Number of first steps that are ignored: DDP arranges its buckets, code is compiled, files are opened."""

KEPT_CALLS, KEPT_STEPS, KEPT_RESULTS = 512, 128, 512
"""How many entries are kept: calls and steps per rank, and steps with their lags per job."""

MOST_ARRIVALS = 1 << 18
"""Most arrivals processed per judgment, the newest ones; takes one or two seconds of CPU."""


@dataclass
class RankCalls:
    """The collectives and steps that one rank has reported, in controller time."""

    calls: dict[tuple[str, int], tuple[float, float | None]] = field(
        default_factory=dict[tuple[str, int], tuple[float, float | None]]
    )
    """By group and number: the arrival time, and the duration in seconds where the backend measures it."""
    steps: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """Begin and end of each optimizer step; the begin is when the backward pass of this rank was over."""
    groups: set[str] = field(default_factory=set[str])
    """All groups it has reported."""

    def add(self, event: Arrivals, offset: float) -> None:
        """Add a report of the rank; `offset` is its host's clock minus the controller's, in seconds."""
        now: float = event["at"] - offset
        self.groups.update(event["groups"])
        for group, calls in event["groups"].items():
            for number, ago, *duration in (call for call in calls if len(call) > 1):
                self.calls[group, int(number)] = (now - ago, duration[0] if duration else None)
        for number, begin, end in event["steps"]:
            self.steps[number] = (now - begin, now - end)
        _forget(self.calls, KEPT_CALLS)
        _forget(self.steps, KEPT_STEPS)


def _forget(table: dict[Any, Any], most: int) -> None:
    for key in list(table)[: max(0, len(table) - most)]:
        del table[key]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step, or the time from one collective to the next where the script has no optimizer."""

    number: int = 0
    """The optimizer's step count; 0 if there is no optimizer."""
    end: float
    seconds: float
    lags: Mapping[int, float]
    """Seconds by which each rank arrived later than the median of the others; negative if earlier."""


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Stragglers."""

    ranks: tuple[int, ...]
    """Slowest first."""
    step: float
    """Seconds per step."""
    others: float
    """Seconds per step at the pace of the other ranks."""
    since: float
    by_waiting: bool = False
    """Whether it was detected by how little it waits, not by its arrival times."""

    @property
    def share(self) -> float:
        """The slowdown: 0.25 for 25 %."""
        return self.step / self.others - 1


class History:
    """The steps of a job, assembled from the reports of its ranks."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankCalls] = {}
        self._known: dict[int, Step] = {}
        self._courses: dict[str, _Course] = {}

    def add(self, rank: int, event: Arrivals, offset: float) -> None:
        """Add a report of a rank; `offset` is its host's clock minus the controller's, in seconds."""
        self.ranks.setdefault(rank, RankCalls()).add(event, offset)

    def steps(self) -> list[Step]:
        """The steps for which every rank has reported its collectives, in order."""
        groups: dict[str, dict[int, RankCalls]] = {}
        for rank in sorted(self.ranks):
            for group in self.ranks[rank].groups:
                groups.setdefault(group, {})[rank] = self.ranks[rank]
        groups = {group: members for group, members in groups.items() if len(members) > 1}
        most = max(8, MOST_ARRIVALS // max(1, sum(map(len, groups.values()))))
        for group, members in groups.items():
            common = _common(group, members)
            if all(one.steps for one in members.values()):
                self._courses.pop(group, None)
                _add_steps(self._known, common, members, most)
                continue
            course = self._courses.get(group)
            if course is None or course.ranks != members.keys():
                course = self._courses[group] = _Course(members)
            course.add(common, members, most)
            # Enough for the longest judgment, for each of possibly many groups.
            del course.steps[: -max(2 * LOOKS[-1], KEPT_RESULTS // len(groups))]
        _forget(self._known, KEPT_RESULTS)
        if self._known:
            return [self._known[number] for number in sorted(self._known)]
        courses = (self._courses[group] for group in groups if group in self._courses)
        return sorted((step for course in courses for step in course.steps), key=lambda step: step.end)


def _common(group: str, members: Mapping[int, RankCalls]) -> list[tuple[str, int]]:
    first, *others = members.values()
    keys = {key for key in first.calls if key[0] == group}
    for one in others:
        keys &= one.calls.keys()
    return sorted(keys)


def _done_with(keys: Collection[tuple[str, int]], members: Mapping[int, RankCalls]) -> None:
    for one in members.values():
        for key in keys:
            del one.calls[key]


def lags_of(arrivals: Mapping[int, float]) -> dict[int, float]:
    """How many seconds later than the median of the others each rank arrived."""
    in_order = sorted(arrivals.values())
    return {rank: time - _middle_of_others(in_order, time) for rank, time in arrivals.items()}


def _middle_of_others(in_order: Sequence[float], own: float) -> float:
    """The median arrival of the other ranks, so that lags are positive as often as negative."""
    place, count = bisect_left(in_order, own), len(in_order) - 1
    low, high = (k + (k >= place) for k in ((count - 1) // 2, count // 2))
    return (in_order[low] + in_order[high]) / 2


def _measured(key: tuple[str, int], members: Mapping[int, RankCalls]) -> dict[int, float] | None:
    """Arrival times derived from durations: a collective ends for all ranks at once, so the shortest call came last."""
    durations = {rank: one.calls[key][1] for rank, one in members.items()}
    known = {rank: -duration for rank, duration in durations.items() if duration is not None}
    return known if len(known) == len(durations) else None


class _Place:
    """Maps a time to the step of a rank."""

    def __init__(self, steps: Mapping[int, tuple[float, float]]) -> None:
        self.numbers = sorted(steps)
        self.ends = [steps[number][1] for number in self.numbers]

    def number(self, time: float) -> int | None:
        """The step at `time`; None if it has not ended yet, 0 if it or the one before it was not reported."""
        place = bisect_left(self.ends, time)
        if place == len(self.numbers):
            return None
        return self.numbers[place] if place and self.numbers[place - 1] == self.numbers[place] - 1 else 0


def _add_steps(
    known: dict[int, Step], common: Sequence[tuple[str, int]], members: Mapping[int, RankCalls], most: int
) -> None:
    """Add the lags at these collectives to their steps, counting only a rank's own time since its last backward pass.

    Wall-clock arrivals would mislead: a slow network releases some ranks later, which then arrive later without being
    slow. Processed calls are dropped; of the calls whose step has ended, only the `most` newest are processed.
    """
    places = {rank: _Place(one.steps) for rank, one in members.items()}
    first, of_first = next(iter(members.items()))
    ends = of_first.steps
    over = [key for key in common if places[first].number(of_first.calls[key][0]) is not None]
    done = over[:-most]
    for key in over[-most:]:
        times = {rank: one.calls[key][0] for rank, one in members.items()}
        numbers = {places[rank].number(time) for rank, time in times.items()}
        if None in numbers:
            continue
        number = numbers.pop()
        if not numbers and number is not None and number > WARM_UP:
            own = {rank: time - members[rank].steps[number - 1][0] for rank, time in times.items()}
            lags = lags_of(_measured(key, members) or own)
            if number in known:
                lags = _later(known[number].lags, lags)
            end = ends[number][1]
            known[number] = Step(number=number, end=end, seconds=end - ends[number - 1][1], lags=lags)
        done.append(key)
    _done_with(done, members)


def _later(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """For each rank, the larger of its two lags."""
    return {rank: max(one.get(rank, -1e9), other.get(rank, -1e9)) for rank in {*one, *other}}


class _Course:
    """Steps of a group without an optimizer: from one collective to the next that all ranks reached after it."""

    def __init__(self, members: Collection[int]) -> None:
        self.ranks = set(members)
        self.steps: list[Step] = []
        self._warm_up = WARM_UP
        self._begin: float | None = None
        self._before: float | None = None
        self._worst: Mapping[int, float] = {}

    def add(self, common: Sequence[tuple[str, int]], members: Mapping[int, RankCalls], most: int) -> None:
        """Process the newest collectives that all ranks have reached since the last call, and drop all of them."""
        skipped, self._warm_up = self._warm_up, max(0, self._warm_up - len(common))
        for key in common[skipped:][-most:]:
            times = {rank: one.calls[key][0] for rank, one in members.items()}
            if self._before is not None and min(times.values()) > self._before:
                if self._begin is not None:
                    seconds = self._before - self._begin
                    self.steps.append(Step(end=self._before, seconds=seconds, lags=self._worst))
                self._begin, self._worst = self._before, {}
            self._worst = _later(self._worst, lags_of(_measured(key, members) or times))
            self._before = max(times.values())
        _done_with(common, members)


def judge(
    steps: Sequence[Step], uncertain: Mapping[int, float] | None = None, looks: Sequence[int] = LOOKS
) -> Slow | None:
    """The ranks that are significantly slower than the others over one of these numbers of slices; None if none are.

    `uncertain` is the clock error of each rank in seconds.
    """
    parts = _slices(steps, LOOKS[-1])
    lags = [_mean_lags(part) for part in parts]
    shares = _shares(parts, lags)
    noise = _noise(list(shares.values()))
    deviations = (2 * log(ODDS * max(1, len(shares)))) ** 0.5
    for count in looks:
        if len(parts) < count:
            break
        needed = max(SLOWER, deviations * noise / count**0.5)
        often = count if count <= 4 else 0.6 * count
        found = {
            rank: lag
            for rank, values in shares.items()
            if mean(values[-count:]) >= needed
            and sum(value >= EACH for value in values[-count:]) >= often
            and (lag := middle([part.get(rank, 0.0) for part in lags[-count:]]))
            > max(SMALLEST, 2 * (uncertain or {}).get(rank, 0.0))
        }
        if found:
            seconds = middle([mean([step.seconds for step in part]) for part in parts[-count:]])
            slowest = sorted(found, key=lambda rank: -found[rank])
            lag = min(found[slowest[0]], seconds * 0.99)
            begin = parts[-count][0].end - parts[-count][0].seconds
            return Slow(ranks=tuple(slowest), step=seconds, others=seconds - lag, since=begin)
    return None


def waits_less(slow: Slow, waiting: Mapping[int, float]) -> bool:
    """Whether the slowest rank spends less of its time in collectives than the others, as a straggler must.

    Without an optimizer it is unknown when the last collective released each rank, so a slow network could look like a
    slow rank.
    """
    named = set(slow.ranks)
    others = [share for rank, share in waiting.items() if rank not in named]
    own = waiting.get(slow.ranks[0])
    return own is not None and bool(others) and middle(others) - own >= 0.5 * (1 - slow.others / slow.step)


def is_over(steps: Sequence[Step], slow: Slow, since: float) -> bool | None:
    """Whether reported ranks have been as fast as the others since the report; None if there is too little data."""
    parts = _slices([step for step in steps if step.end - step.seconds >= since], CHANGE[0])
    if len(parts) < CHANGE[0]:
        return None
    shares = _shares(parts, [_mean_lags(part) for part in parts])
    return all(mean(shares.get(rank, [0.0])) < GONE for rank in slow.ranks)


def _mean_lags(part: Sequence[Step]) -> dict[int, float]:
    """The mean lag of each rank in a slice, in seconds; 0 in steps of groups that the rank is not in."""
    sums: dict[int, float] = {}
    for step in part:
        for rank, lag in step.lags.items():
            sums[rank] = sums.get(rank, 0.0) + lag
    return {rank: lag / len(part) for rank, lag in sums.items()}


def _shares(parts: Sequence[Sequence[Step]], lags: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    """The slowdown of each rank in each slice, limited to CLIP."""
    ranks = {rank for part in lags for rank in part}
    means = [mean([step.seconds for step in part]) for part in parts]
    return {
        rank: [_share(part.get(rank, 0.0), seconds) for part, seconds in zip(lags, means, strict=True)]
        for rank in ranks
    }


def _share(lag: float, seconds: float) -> float:
    return max(-CLIP, min(CLIP, lag / max(seconds - lag, seconds * 0.01, 1e-9)))


def _noise(shares: Sequence[Sequence[float]]) -> float:
    """Standard deviation of a rank's slowdown from slice to slice; a single change of level has little effect."""
    squares = [(after - before) ** 2 / 2 for values in shares for before, after in pairwise(values)]
    return mean(squares) ** 0.5 if squares else 0.0


def middle(values: Sequence[float]) -> float:
    """The median, or the lower of the two middle values; avoids importing `statistics`, which takes 10 ms."""
    return sorted(values)[(len(values) - 1) // 2]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, without importing `statistics`."""
    return sum(values) / len(values)


def _slices(steps: Sequence[Step], count: int) -> list[list[Step]]:
    """The last steps in at most `count` slices of sufficient length, newest last."""
    if not steps:
        return []
    is_short = middle([step.seconds for step in steps[-2 * count :]]) < SHORT_STEP
    length = SHORT_SLICE if is_short else 0.0
    parts: list[list[Step]] = []
    part: list[Step] = []
    for step in reversed(steps):
        part.append(step)
        if part[0].end - step.end + step.seconds >= length:
            parts.append(part[::-1])
            part = []
            if len(parts) == count:
                break
    return parts[::-1]
