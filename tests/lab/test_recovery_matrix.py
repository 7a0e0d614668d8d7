"""The most telling faults in real jobs: they recover, and no rank of an earlier attempt writes after the next began.

`python -m benchmarks.recovery --matrix` runs all of them, many times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.recovery import rows
from benchmarks.recovery.matrix import CASES, Case, play
from benchmarks.recovery.moments import Moment, afterlife, begun, incomplete, stale
from benchmarks.recovery.stage import Stage
from waiting import patience

in_lab = [
    pytest.mark.lab,
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.getuid() != 0, reason="power cuts and frozen hosts need a lab started as root"),
]

SLACK = 6.0
"""Seconds that a busy machine may add to a recovery."""

TELLING = {"power-first": 7.5, "frozen-rejoin": 7.5, "agent-spare": 1.0, "zygote-shrink": 15.0}
"""Cases, and how many seconds each may take until the first all_reduce of the new world."""


@pytest.fixture(scope="module")
def stage(shared: Path) -> Iterator[Stage]:
    with Stage(4, shared) as stage:
        yield stage


class TestInTheLab:
    """Real jobs on real hosts."""

    pytestmark = in_lab

    @pytest.mark.parametrize("case", [case for case in CASES if case.name in TELLING], ids=lambda case: case.name)
    def test_the_job_recovers(self, stage: Stage, case: Case) -> None:
        assert play(stage, case) < TELLING[case.name] + patience(SLACK)

    def test_a_killed_ssh_connection_and_an_unplugged_cable_cost_no_rank_and_no_line_of_output(
        self, stage: Stage
    ) -> None:
        with stage.muster(ranks=2, hosts=2) as trial:
            trial.wait_for_start(4)
            rows.break_connection(trial)
            rows.cut(trial, 6)
            rows.undisturbed(trial)

    def test_a_thawed_host_that_reaches_nobody_does_not_continue_its_old_ranks(self, stage: Stage) -> None:
        with stage.muster("--spares", "1", hosts=3) as trial:
            trial.wait_for_start(2)
            begin = time.time()
            stage.lab.cut("h2")
            stage.lab.freeze("h2")
            trial.wait_for_recovery(begin, 90)
            thawed = time.time()
            stage.lab.thaw("h2")
            trial.wait_for("nothing runs on h2", lambda: not stage.lab.processes("h2"), 30)
            assert trial.finish() == 0, trial.words
            assert not stale(trial.moments(), thawed=thawed)
            assert afterlife(trial.moments(), "h2", thawed) < 1.0


def moment(what: str, time: float, *, attempt: int = 0, rank: int = 0, world: int = 2, step: int = 0) -> Moment:
    return Moment(
        what=what, time=time, attempt=attempt, rank=rank, host="h1", group=attempt + 1, world=world, step=step, pid=1
    )


def test_a_world_has_begun_when_its_last_rank_has():
    some = [moment("first", 1.0), moment("first", 1.5, rank=1), moment("first", 3.0, attempt=1)]
    assert begun(some, 0.0) == 1.5
    assert begun(some, 2.0) is None
    assert begun([*some, moment("first", 3.2, attempt=1, rank=1)], 2.0) == 3.2


def test_a_write_of_an_older_attempt_is_found_and_a_sign_of_life_after_a_thaw_is_not_one():
    late = [moment("start", 2.0, attempt=1), moment("save", 2.1), moment("beat", 2.2)]
    assert [one.what for one in stale(late)] == ["save", "beat"]
    assert [one.what for one in stale(late, thawed=2.15)] == ["save"]


def test_a_gap_a_repetition_and_a_missing_end_are_found():
    ends = [moment("end", 9.0, rank=rank, step=3) for rank in range(2)]
    whole = "".join(f"[h{rank} {rank}] step {step}\n" for step in (1, 2, 3) for rank in range(2))
    assert incomplete(whole, ends) == ""
    assert "rank 1 printed 2 of 3 lines; wrong from line 2" in incomplete(whole.replace("[h1 1] step 2\n", ""), ends)
    assert "rank 0 printed 4 of 3 lines" in incomplete(whole + "[h0 0] step 3\n", ends)
