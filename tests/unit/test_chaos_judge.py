"""The plan and the judge of `python -m benchmarks.chaos`, both pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.chaos.judge import judge
from benchmarks.chaos.observation import Observation, Struck, Verdict
from benchmarks.chaos.plan import LEASE, TARGETS, Fault, Plan, plan_of

LINES = 40
BEGIN = 1000.0
LAST = BEGIN + LINES / 10
"""When the last line was printed, if nothing happened."""


def fault(kind: str, target: str, *, place: int = 0, rank: int = 0, lasts: float | None = None) -> Fault:
    return Fault(kind=kind, target=target, place=place, rank=rank, at=1.0, lasts=lasts)  # pyright: ignore[reportArgumentType]


def plan(*faults: Fault, failure: tuple[int, int] | None = None, early: bool = False, scratch: bool = False) -> Plan:
    return Plan(
        seed=1,
        engine="ssh",
        hosts=2,
        ranks=2,
        zygote=False,
        torch=False,
        lines=LINES,
        children=False,
        scratch=scratch,
        hungry=None,
        failure=failure,
        second=False,
        early=early,
        faults=faults,
    )


def said(lines: int = LINES) -> tuple[float, ...]:
    return tuple(BEGIN + number / 10 for number in range(1, lines + 1))


def numbers(lines: int = LINES) -> tuple[int, ...]:
    return tuple(range(1, lines + 1))


SUCCESS = Observation(
    code=0,
    ended=LAST + 0.5,
    struck=(),
    said=(said(),) * 4,
    finished=(True,) * 4,
    logged=(numbers(),) * 4,
    gone=LAST + 1,
    verdict=Verdict(exit_code=0, status="done"),
)


def failed(
    code: int, *, rank: int | None = None, host: str = "", lines: int = 20, struck: Struck | None
) -> Observation:
    """A job that ended with this code and verdict after some lines."""
    return replace(
        SUCCESS,
        code=code,
        ended=BEGIN + lines / 10 + 1,
        struck=(struck,) if struck else (),
        said=(said(lines),) * 4,
        finished=(False,) * 4,
        logged=(numbers(lines),) * 4,
        verdict=Verdict(exit_code=code, status="failed", rank=rank, host=host, sentence="it failed"),
    )


HIT = Struck(begin=BEGIN + 2)
KILLED_RANK = fault("kill", "rank", rank=3, place=1)
KILLED_AGENT = fault("kill", "agent", place=1)
KILLED_SRUN = fault("kill", "srun", place=-1)
LONG_CUT = fault("cut", "host", place=1, lasts=12)
CUT_FOR_LONG = Struck(begin=BEGIN + 1, end=BEGIN + 13)

GOOD: dict[str, tuple[Plan, Observation]] = {
    "nothing happens": (plan(), SUCCESS),
    "a script fails": (plan(failure=(1, 20)), failed(1, rank=1, struck=None)),
    "a rank is killed": (plan(KILLED_RANK), failed(137, rank=3, host="h3", struck=HIT)),
    "an agent is killed": (plan(KILLED_AGENT), failed(125, host="h3", struck=HIT)),
    "a short cut": (
        plan(fault("cut", "host", lasts=1.0)),
        replace(SUCCESS, struck=(Struck(begin=BEGIN + 1, end=BEGIN + 2),)),
    ),
    "a long cut": (plan(LONG_CUT), failed(125, host="h3", lines=10, struck=CUT_FOR_LONG)),
    "a killed controller loses the last lines and leaves no verdict": (
        plan(fault("kill", "controller", place=-1)),
        replace(failed(137, struck=Struck(begin=BEGIN + 4), lines=40), logged=(numbers(12),) * 4, verdict=None),
    ),
    "an outage near the lease that the job survives": (
        plan(fault("stop", "controller", place=-1, lasts=1.5)),
        replace(SUCCESS, struck=(Struck(begin=BEGIN + 1, end=BEGIN + 8),)),
    ),
    "an outage near the lease that ends the job": (
        plan(fault("stop", "controller", place=-1, lasts=1.5)),
        failed(125, host="h2", struck=Struck(begin=BEGIN + 1, end=BEGIN + 8)),
    ),
    "a rank is killed after its last line": (
        plan(KILLED_RANK),
        replace(SUCCESS, struck=(Struck(begin=LAST + 0.1),)),
    ),
    "a full disk under a script that writes": (
        plan(fault("disk", "host"), scratch=True),
        failed(1, rank=0, host="h2", struck=HIT),
    ),
    "the job ends before the fault": (plan(KILLED_RANK), replace(SUCCESS, struck=(None,))),
    "ranks that end before Slurm ends them because of a killed srun": (
        plan(KILLED_SRUN),
        replace(SUCCESS, struck=(Struck(begin=LAST - 2),)),
    ),
    "an agent of mpirun is killed": (
        replace(plan(KILLED_AGENT), engine="mpi"),
        failed(125, host="h3", struck=HIT),
    ),
    "a fault while the job starts": (
        plan(fault("power", "host"), early=True),
        replace(failed(125, host="h2", struck=HIT), said=((),) * 4, logged=((),) * 4),
    ),
}

BAD: dict[str, tuple[Plan, Observation, str]] = {
    "it hangs": (plan(), replace(SUCCESS, code=None), "did not end"),
    "success after a killed rank": (
        plan(KILLED_RANK),
        replace(SUCCESS, struck=(Struck(begin=BEGIN + 0.1),)),
        "exit code 0, but it should be 137",
    ),
    "success long after a killed srun": (
        plan(KILLED_SRUN),
        replace(SUCCESS, struck=(Struck(begin=LAST - 20),)),
        "exit code 0, but it should be 125",
    ),
    "the wrong host is named after an agent of mpirun was killed": (
        replace(plan(KILLED_AGENT), engine="mpi"),
        failed(125, host="h2", struck=HIT),
        "the verdict should name h3",
    ),
    "failure without a cause": (plan(), failed(1, rank=0, struck=None), "exit code 1, but it should be 0"),
    "a short cut ends the job": (
        plan(fault("cut", "host", lasts=1.0)),
        failed(125, host="h2", struck=Struck(begin=BEGIN + 1, end=BEGIN + 2)),
        "exit code 125, but it should be 0",
    ),
    "success although a script did not come to its end": (
        plan(),
        replace(SUCCESS, finished=(True, True, True, False)),
        "not every rank has finished",
    ),
    "the wrong rank is named": (
        plan(KILLED_RANK),
        failed(137, rank=2, struck=HIT),
        "the verdict should name rank 3: it failed",
    ),
    "the wrong host is named": (plan(KILLED_AGENT), failed(125, host="h2", struck=HIT), "the verdict should name h3"),
    "ps shows another code": (
        plan(KILLED_RANK),
        replace(
            failed(137, rank=3, struck=HIT), verdict=Verdict(exit_code=1, status="failed", rank=3, sentence="it failed")
        ),
        "the job directory says 1",
    ),
    "a process is left": (plan(), replace(SUCCESS, gone=None, left=("h2 17 sleep",)), "left: h2 17 sleep"),
    "a line is missing": (
        plan(),
        replace(SUCCESS, logged=(*[numbers()] * 3, (*range(1, 20), *range(21, 41)))),
        "rank 3: line 21 is where line 20 should be in the log",
    ),
    "a line came twice": (
        plan(),
        replace(SUCCESS, logged=((1, 2, 2, *range(3, 41)), *[numbers()] * 3)),
        "rank 0: line 2 is where line 3 should be in the log",
    ),
    "the last line is missing": (
        plan(),
        replace(SUCCESS, logged=(numbers(39), *[numbers()] * 3)),
        "rank 0: the log has 39 of 40 lines; 40 were printed in time",
    ),
    "a lost host must not cost lines of others": (
        plan(LONG_CUT),
        replace(failed(125, host="h3", lines=30, struck=CUT_FOR_LONG), logged=(numbers(29), *[numbers(30)] * 3)),
        "rank 0: the log has 29 of 30 lines",
    ),
    "the job directory is damaged": (plan(), replace(SUCCESS, unreadable="exit code 125"), "not readable"),
    "the other job ended": (plan(), replace(SUCCESS, second="it ended with 125"), "the other job was disturbed"),
    "a file is left": (plan(), replace(SUCCESS, dirty=("h2: agent.sock",)), "the lab is not clean: h2: agent.sock"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_round_as_it_should_be_has_no_violation(name: str):
    assert judge(*GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_a_violation_is_found(name: str):
    planned, seen, sentence = BAD[name]
    assert any(sentence in problem for problem in judge(planned, seen)), judge(planned, seen)


def test_of_two_faults_that_follow_each_other_closely_either_may_be_the_first():
    both = plan(KILLED_RANK, fault("kill", "rank", rank=0))
    close = (HIT, Struck(begin=HIT.begin + 0.5))
    for rank in (3, 0):
        assert judge(both, replace(failed(137, rank=rank, struck=None), struck=close)) == []
    apart = (Struck(begin=HIT.begin), Struck(begin=HIT.begin + LEASE))
    assert judge(both, replace(failed(137, rank=0, struck=None), struck=apart))


def test_a_disk_that_took_long_to_fill_counts_from_when_it_was_full():
    full = BEGIN + 20
    both = plan(fault("disk", "host", place=1), KILLED_AGENT, scratch=True)
    seen = failed(125, host="h3", lines=200, struck=None)
    filled, killed = Struck(begin=BEGIN + 2, done=full), Struck(begin=full + 0.1, done=full + 0.1)
    assert judge(both, replace(seen, struck=(filled, killed))) == []
    assert judge(both, replace(seen, struck=(replace(filled, done=BEGIN + 3), killed)))


def test_a_seed_gives_the_same_round_again():
    assert [plan_of(seed) for seed in range(50)] == [plan_of(seed) for seed in range(50)]


def test_the_seeds_cover_every_engine_and_every_fault():
    plans = [plan_of(seed) for seed in range(2000)]
    assert {one.engine for one in plans} == set(TARGETS)
    hit = {(one.engine, planned.target) for one in plans for planned in one.faults}
    assert hit >= {(engine, target) for engine, targets in TARGETS.items() for target in targets}
    kinds = {planned.kind for one in plans for planned in one.faults}
    assert kinds == {"kill", "stop", "cut", "slow", "loss", "power", "freeze", "disk", "memory"}


def test_every_fault_hits_a_rank_and_a_host_of_its_job():
    for seed in range(2000):
        one = plan_of(seed)
        for planned in one.faults:
            assert -1 <= planned.place < one.hosts
            assert 0 <= planned.rank < one.world
            assert planned.target != "rank" or planned.place == one.host_of(planned.rank)
        stopped = [(planned.target, planned.place) for planned in one.faults if planned.kind == "stop"]
        assert len(stopped) == len(set(stopped)), "the end of one stop would end the other"
