"""The search for slow ranks in jobs of thousands: how much work it is, and that the event loop does not wait for it."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import effort, growth
from messages import publish
from sample_status import make_status
from waiting import wait_until_async

from muster.controller.monitor import straggler
from muster.controller.monitor.rounds import Rounds, judge_waiting
from muster.controller.monitor.straggler import History, Slow, Step, is_over, judge
from muster.controller.monitor.straggler_monitor import StragglerMonitor
from muster.output.screen import Screen

pytestmark = pytest.mark.timeout(100)

STEP = 0.3


def told(rank: int, steps: range, *, group: str = "0", slow: bool = False, optimiser: bool = True) -> dict[str, Any]:
    """What a rank reports after these steps, each with one collective; a slow one reaches it 0.06 s later."""
    now = STEP * steps.stop + 1
    late = 0.06 if slow else 0.001 * (rank % 3)
    calls = [[step + 1, now - (STEP * step + 0.2 + late)] for step in steps]
    ends = [[step + 1, now - STEP * (step + 1) + 0.02, now - STEP * (step + 1) + 0.01] for step in steps]
    return {"t": "arrivals", "rank": rank, "at": now, "groups": {group: calls}, "steps": ends if optimiser else []}


def history_of(ranks: int, **more: Any) -> History:
    """After 16 steps; the first rank is slow, or every third one."""
    history = History()
    pairs, half = more.pop("pairs", False), more.pop("half", False)
    for rank in range(ranks):
        slow = rank % 3 == 1 if half else rank == 0
        group = str(rank // 2) if pairs else "0"
        history.add(rank, told(rank, range(16), group=group, slow=slow, **more), 0.0)
    return history


JOBS: dict[str, dict[str, bool]] = {
    "steps are counted": {},
    "nobody counts steps": {"optimiser": False},
    "many are slow": {"half": True},
    "many groups of two": {"pairs": True, "optimiser": False},
}


@pytest.mark.parametrize("case", JOBS)
def test_the_work_of_a_judgement_grows_with_the_ranks_and_not_with_their_square(case: str):
    def judged(ranks: int) -> Callable[[], object]:
        history = history_of(ranks, **JOBS[case])

        def work() -> bool | None:
            steps = history.steps()
            return is_over(steps, judge(steps) or Slow(ranks=(0,), step=STEP, others=STEP, since=0.0), 0.0)

        return work

    assert judged(16)() is not None, "there is enough to judge"
    assert growth(judged, 128, 512) < 6  # four times the ranks


def test_the_work_of_collecting_waiting_times_grows_linearly_with_the_ranks():
    def taken(ranks: int) -> Callable[[], object]:
        rounds, everybody = Rounds(), dict.fromkeys(range(ranks))

        def work() -> None:
            for second in range(6):
                for rank in everybody:
                    rounds.add(rank, second + rank / 4096, 4 * second, 0.1 if rank == 1 else 0.3, everybody)
            assert len(rounds.steps) > 2
            judge_waiting(rounds.steps, [Step(end=0.0, seconds=1.0, lags={})])

        return work

    assert growth(taken, 128, 512) < 6


@pytest.mark.parametrize("optimiser", [True, False], ids=["steps are counted", "nobody counts steps"])
def test_what_has_been_gone_through_is_not_gone_through_again(optimiser: bool):
    history = history_of(64, optimiser=optimiser)
    first = effort(history.steps)
    known = len(history.steps())
    for rank in range(64):
        history.add(rank, told(rank, range(16, 18), optimiser=optimiser), 0.0)
    assert effort(history.steps) < first / 3
    assert len(history.steps()) == known + 2


@pytest.mark.parametrize("optimiser", [True, False], ids=["steps are counted", "nobody counts steps"])
def test_of_more_than_a_judgement_can_go_through_the_newest_are_taken(monkeypatch: pytest.MonkeyPatch, optimiser: bool):
    most = straggler.MOST_ARRIVALS // 8  # less to go through here too
    monkeypatch.setattr(straggler, "MOST_ARRIVALS", most)
    ranks, steps = 512, most // 512 + 20
    history = History()
    for rank in range(ranks):
        for first in range(0, steps, 60):
            history.add(rank, told(rank, range(first, min(first + 60, steps)), optimiser=optimiser), 0.0)
    found = history.steps()
    assert most / 2 < sum(len(step.lags) for step in found) <= most
    assert found[-1].end > STEP * (steps - 2)
    assert sum(len(calls.calls) for calls in history.ranks.values()) <= ranks, "what was left out is forgotten"


class HeldUp(History):
    """One whose judgement takes until it is let go."""

    def __init__(self, error: str = "") -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.judgements = 0
        self.error = error

    def steps(self) -> list[Step]:
        """The steps, after a while."""
        self.judgements += 1
        assert self.may_go_on.wait(30), "whoever should let it go waits for it"
        if self.error:
            raise LookupError(self.error)
        return super().steps()


def searched(history: HeldUp, work: Callable[[StragglerMonitor, Callable[[int, range], None]], Any]) -> str:
    """Search with this history, and return what was said."""
    out = io.StringIO()
    screen = Screen(streams={1: out, 2: out})
    status, link = make_status()
    search = StragglerMonitor(status, screen)
    search._rounds, search._history = Rounds(), history  # pyright: ignore[reportPrivateUsage]
    asyncio.run(work(search, lambda rank, steps: publish(search, link, told(rank, steps))))
    screen.close()
    return out.getvalue()


def test_what_the_event_loop_does_for_a_judgement_grows_with_the_ranks():
    status, link = make_status()
    search = StragglerMonitor(status, Screen(streams={1: None, 2: None}))

    def asked(ranks: int) -> Callable[[], object]:
        history = history_of(ranks, optimiser=False)
        search._links = dict.fromkeys(range(ranks), link)  # pyright: ignore[reportPrivateUsage]
        return lambda: search._question(history)  # pyright: ignore[reportPrivateUsage]

    few, many = effort(asked(256)), effort(asked(1024))
    assert many < 6 * few
    assert many < 25 * 1024, "and is little"


def test_the_event_loop_continues_during_a_judgment_and_later_events_are_judged_after_it():
    history = HeldUp()

    async def work(search: StragglerMonitor, tell: Callable[[int, range], None]) -> None:
        tell(0, range(3))
        tell(1, range(3))  # all have reported: it starts
        await wait_until_async("a judgement", lambda: history.judgements == 1)
        for rank in (0, 1, 2):
            tell(rank, range(3, 6))
        search.tick()
        await asyncio.sleep(0.05)
        assert history.judgements == 1, "one at a time"
        assert sorted(history.ranks) == [0, 1], "nothing changes under its hands"
        history.may_go_on.set()
        await wait_until_async("what came meanwhile", lambda: sorted(history.ranks) == [0, 1, 2])
        # There is a rest after each.
        await wait_until_async("the second judgement", lambda: search.tick() or history.judgements == 2)

    assert searched(history, work) == ""


def test_what_a_judgement_was_about_is_of_no_concern_to_the_next_attempt():
    history = HeldUp()

    async def work(search: StragglerMonitor, tell: Callable[[int, range], None]) -> None:
        tell(0, range(3))
        tell(1, range(3))
        await wait_until_async("a judgement", lambda: history.judgements == 1)
        tell(2, range(3))
        search.begin_attempt()
        tell(0, range(1))
        history.may_go_on.set()
        await wait_until_async("its rank", lambda: list(search._ranks) == [0])  # pyright: ignore[reportPrivateUsage]
        assert sorted(history.ranks) == [0, 1]

    assert searched(history, work) == ""


def test_an_error_in_a_judgement_ends_the_search_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = HeldUp("no such rank")
    history.may_go_on.set()

    async def work(search: StragglerMonitor, tell: Callable[[int, range], None]) -> None:
        for first in range(0, 9, 3):
            tell(0, range(first, first + 3))
            tell(1, range(first, first + 3))
            search.tick()
            await wait_until_async("its end", lambda: search._is_off)  # pyright: ignore[reportPrivateUsage]

    said = searched(history, work)
    assert said.startswith(
        "muster: straggler detection is disabled for this job: internal error in Muster: LookupError: no such "
        "rank (test_"
    )
    assert said.endswith(f"; please report it with {tmp_path}/muster/debug.log\n")
    assert history.judgements == 1
