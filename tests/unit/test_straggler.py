"""Which rank the others wait for: judged from simulated jobs, as the controller would see them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from muster.controller.monitor import network_stall
from muster.controller.monitor.rounds import Rounds, in_all, judge_waiting
from muster.controller.monitor.slow_causes import Evidence, explain, gone, sentence
from muster.controller.monitor.straggler import CHANGE, LOOKS, History, Slow, Step, is_over, judge, waits_less
from muster.jobs.state import GpuState

Work = Callable[[int, int], float]
"""Seconds a rank works for itself in a step."""


@dataclass
class Simulated:
    """Ranks that work, then meet in the buckets of a backward pass, step after step."""

    work: Work
    ranks: int = 4
    buckets: int = 3
    optimiser: bool = True
    measured: bool = False
    """Whether the backend measures how long a collective took, as NCCL can."""
    clocks: Mapping[int, float] | None = None
    """How far each rank's clock is ahead."""
    released: Mapping[int, float] | None = None
    """Seconds after the others at which the last collective of a step is over for a rank."""

    def run(self, steps: int) -> dict[int, list[dict[str, Any]]]:
        """The messages of each second, by rank, up to the last whole second."""
        arrivals: list[tuple[int, int, float, float]] = []
        ends: list[float] = []
        now = 1000.0
        for step in range(steps):
            own = {rank: self.work(rank, step) for rank in range(self.ranks)}
            for bucket in range(self.buckets):
                meet = now + max(own.values()) + max((self.released or {0: 0.0}).values()) + 0.002 * bucket
                for rank, seconds in own.items():
                    came = now + (self.released or {}).get(rank, 0.0) + seconds + 0.002 * bucket
                    arrivals.append((rank, step * self.buckets + bucket + 1, came, meet + 0.001 - came))
            now += max(own.values()) + max((self.released or {0: 0.0}).values()) + 0.002 * self.buckets
            ends.append(now)
        return {rank: self._messages(rank, arrivals, ends) for rank in range(self.ranks)}

    def _messages(
        self, rank: int, arrivals: Sequence[tuple[int, int, float, float]], ends: Sequence[float]
    ) -> list[dict[str, Any]]:
        ahead = (self.clocks or {}).get(rank, 0.0)
        messages: list[dict[str, Any]] = []
        for second in range(1001, int(ends[-1]) + 1):
            calls = [
                [number, second - came, *([took] if self.measured else [])]
                for who, number, came, took in arrivals
                if who == rank and second - 1 < came <= second
            ]
            late = (self.released or {}).get(rank, 0.0)
            steps = [
                [n + 1, second - end - late, second - end - 0.001 - late]
                for n, end in enumerate(ends)
                if second - 1 < end + 0.001 + late <= second
            ]
            groups = {"0": calls[-64:]} if calls else {}
            messages.append({"at": second + ahead, "groups": groups, "steps": steps[-64:] if self.optimiser else []})
        return messages


def named(
    job: Simulated, steps: int, *, offsets: Mapping[int, float] | None = None, **more: Any
) -> list[tuple[int, Slow]]:
    """All judgements over a job, each with the number of steps done by then."""
    messages = job.run(steps)
    history = History()
    found: list[tuple[int, Slow]] = []
    for second in range(len(messages[0])):
        for rank, told in messages.items():
            history.add(rank, told[second], (offsets or {}).get(rank, 0.0))
        slow = judge(history.steps(), **more)
        if slow is not None:
            done = max([number for number, *_ in messages[0][second]["steps"]] or [0])
            found.append((done, slow))
    return found


@pytest.mark.parametrize("culprit", range(4))
def test_a_rank_that_becomes_12_percent_slower_is_named_within_10_steps(culprit: int):
    (first, slow), *_ = named(Simulated(lambda r, s: 0.28 if r == culprit and s >= 20 else 0.25), 40)
    assert slow.ranks == (culprit,)
    assert 20 < first <= 30
    assert slow.share == pytest.approx(0.12, abs=0.02)
    assert slow.step == pytest.approx(0.286, abs=0.005)


def test_a_rank_that_was_slow_from_the_beginning_is_named():
    (first, slow), *_ = named(Simulated(lambda r, s: 0.35 if r == 3 else 0.3), 30)
    assert slow.ranks == (3,)
    assert first <= 13  # ten after the warm-up


def test_a_rank_whose_message_comes_late_is_waited_for():
    messages = Simulated(lambda r, s: 0.36 if r == 3 else 0.3).run(20)
    history = History()
    for second in range(len(messages[0])):
        for rank in range(4):
            history.steps()
            history.add(rank, messages[rank][second], 0.0)
    steps = history.steps()
    assert len(steps) > 10
    assert all(set(step.lags) == {0, 1, 2, 3} for step in steps)


def test_one_of_two_ranks_can_be_named():
    (_, slow), *_ = named(Simulated(lambda r, s: 0.36 if r == 0 else 0.3, ranks=2), 20)
    assert slow.ranks == (0,)


def test_all_ranks_of_a_slow_host_are_named_the_slowest_first():
    times = (0.3, 0.3, 0.36, 0.37)
    (_, slow), *_ = named(Simulated(lambda r, s: times[r]), 20)
    assert slow.ranks == (3, 2)


def test_short_steps_take_some_seconds_but_the_rank_is_named():
    found = named(Simulated(lambda r, s: 0.012 if r == 1 else 0.009, buckets=1), 1000)
    assert found[0][1].ranks == (1,)


def test_a_script_without_an_optimiser_is_judged_by_its_collectives():
    (_, slow), *_ = named(Simulated(lambda r, s: 0.36 if r == 2 else 0.3, buckets=1, optimiser=False), 30)
    assert slow.ranks == (2,)


QUIET: dict[str, Work] = {
    "nothing": lambda r, s: 0.25,
    "rank 0 works 7 % longer": lambda r, s: 0.2675 if r == 0 else 0.25,
    "one slow step": lambda r, s: 3.0 if (r, s) == (2, 20) else 0.25,
    "an evaluation on rank 0 every 15 steps": lambda r, s: 5.0 if r == 0 and s % 15 == 14 else 0.25,
    "a checkpoint on rank 0 every 5 steps": lambda r, s: 0.6 if r == 0 and s % 5 == 4 else 0.25,
    "a warm-up of three steps": lambda r, s: 2.0 if r == 1 and s < 3 else 0.25,
    "all ranks are slow together": lambda r, s: 0.4 if s > 20 else 0.25,
    "one rank is faster": lambda r, s: 0.2 if r == 3 else 0.25,
}


@pytest.mark.parametrize("case", QUIET)
def test_nobody_is_named_where_no_rank_is_slow(case: str):
    assert named(Simulated(QUIET[case]), 60) == []


def test_nobody_is_named_for_sequences_of_random_length():
    alarms = 0
    for seed in range(12):
        chance = random.Random(seed)
        alarms += bool(named(Simulated(lambda r, s, chance=chance: chance.uniform(0.2, 0.3), buckets=1), 120))
    assert alarms == 0


def test_a_slow_rank_is_found_among_steps_of_random_length():
    chance = random.Random(1)
    found = named(Simulated(lambda r, s: chance.uniform(0.2, 0.3) * (1.4 if r == 1 else 1.0), buckets=1), 80)
    assert {slow.ranks for _, slow in found} == {(1,)}


def test_clocks_that_are_off_do_not_matter_where_steps_are_counted():
    assert named(Simulated(lambda r, s: 0.3, clocks={1: 5.0, 2: -0.4}), 20) == []


def test_clocks_that_are_off_are_put_right_where_they_are_not():
    job = Simulated(lambda r, s: 0.3, clocks={1: 5.0, 2: -0.4}, optimiser=False)
    assert named(job, 20, offsets={1: 5.0, 2: -0.4}) == []


def test_what_a_clock_may_be_off_is_no_delay():
    job = Simulated(lambda r, s: 0.3, clocks={2: 0.04}, optimiser=False)
    assert named(job, 20), "without knowing better"
    assert named(job, 20, uncertain={2: 0.05}) == []


def test_a_rank_that_a_slow_network_lets_go_later_is_not_called_slow():
    assert named(Simulated(lambda r, s: 0.3, released={1: 0.1}), 30) == []


def test_without_steps_a_slow_rank_must_wait_less_than_the_others():
    slow = Slow(ranks=(2,), step=0.3, others=0.25, since=0.0)
    assert waits_less(slow, {0: 0.3, 1: 0.35, 2: 0.1, 3: 0.3})
    assert not waits_less(slow, {0: 0.3, 1: 0.35, 2: 0.3, 3: 0.3})
    assert not waits_less(slow, {0: 0.3, 1: 0.35, 3: 0.3}), "nothing is known of it"


def rounds_of(waiting: Callable[[int, int], float], seconds: int, stall: range = range(0)) -> Rounds:
    """Ranks that make four steps per second and report how long they waited; in `stall` no rank makes progress."""
    rounds, steps = Rounds(), 0
    for second in range(seconds):
        steps += 0 if second in stall else 4
        for rank in range(4):
            rounds.add(rank, second + rank * 0.2, steps, waiting(rank, second), range(4))
    return rounds


def test_a_rank_that_is_late_by_a_little_at_many_collectives_is_found_by_how_little_it_waits():
    chance = random.Random(3)
    real = [Step(number=1, end=0.0, seconds=2.0, lags={})]
    rounds = rounds_of(lambda r, s: (0.1 if r == 1 else 0.3) + chance.uniform(-0.1, 0.1), 30)
    slow = judge_waiting(rounds.steps, real)
    assert slow is not None
    assert slow.ranks == (1,)
    assert slow.by_waiting
    assert slow.step == 2.0
    assert slow.share == pytest.approx(0.25, abs=0.1)


def test_the_time_lost_in_all_collectives_of_a_step_is_reported_not_only_in_one():
    rounds = rounds_of(lambda r, s: 0.05 if r == 2 else 0.25, 20)
    at_one = Slow(ranks=(2,), step=1.0, others=0.92, since=0.0)
    assert in_all(at_one, rounds.steps).others == pytest.approx(0.8)
    whole = Slow(ranks=(2,), step=1.0, others=0.82, since=0.0)
    assert in_all(whole, rounds.steps) == whole
    assert in_all(at_one, []) == at_one


def test_waiting_that_varies_names_nobody():
    real = [Step(number=1, end=0.0, seconds=2.0, lags={})]
    for seed in range(20):
        chance = random.Random(seed)
        rounds = rounds_of(lambda r, s, chance=chance: chance.uniform(0.1, 0.5), 60)
        assert judge_waiting(rounds.steps, real) is None


def test_a_rank_that_is_still_or_already_alone_makes_no_round():
    rounds = Rounds()
    for second in range(9):
        rounds.add(0, float(second), 4 * second, 0.3, {0})
    assert rounds.steps == []


def test_an_evaluation_of_one_rank_is_one_round_however_long_it_takes():
    rounds = rounds_of(lambda r, s: (0.0 if r == 0 else 1.0) if 20 <= s < 50 else 0.3, 80, stall=range(20, 50))
    assert judge_waiting(rounds.steps, [Step(number=1, end=0.0, seconds=2.0, lags={})]) is None
    assert len(rounds.steps) > 20


def test_measured_collectives_need_no_clocks():
    job = Simulated(lambda r, s: 0.36 if r == 2 else 0.3, measured=True, clocks={0: 7.0, 1: -3.0})
    (_, slow), *_ = named(job, 20)
    assert slow.ranks == (2,)


def test_a_rank_that_has_recovered_is_known_after_ten_slices():
    messages = Simulated(lambda r, s: 0.36 if r == 2 and s < 20 else 0.3).run(60)
    history = History()
    for second in range(len(messages[0])):
        for rank, told in messages.items():
            history.add(rank, told[second], 0.0)
    steps = history.steps()
    slow = Slow(ranks=(2,), step=0.36, others=0.3, since=0.0)
    assert is_over(steps, slow, steps[-5].end) is None
    assert is_over(steps, slow, steps[25].end) is True
    assert is_over(steps[:16], slow, steps[0].end) is False
    assert max(LOOKS) == max(CHANGE)


# --- the network --------------------------------------------------------------------------------------------

ADDRESSES = {"10.0.0.1": "h1", "10.0.0.2": "h2", "10.0.0.3": "h3"}


def test_the_host_at_one_end_of_all_that_waits_to_be_sent_has_the_slow_network():
    queues = {"h1": {"10.0.0.3": 900.0}, "h2": {"10.0.0.1": 280e3}, "h3": {"10.0.0.2": 190e3, "192.168.7.7": 5e6}}
    found = network_stall.slow_network(queues, ADDRESSES)
    assert found is not None
    assert found.hosts == ("h2",)
    assert network_stall.sentence(found, step=0.52, best=0.21, waiting=0.5, ranks=(1,)) == (
        "the network of h2 (rank 1) is slowing the job down: 0.52 s per step (0.21 s at best), "
        "50 % of it in collectives; 471 kB are queued to be sent on average"
    )


def test_with_two_hosts_it_is_unknown_which_network_is_slow():
    found = network_stall.slow_network({"h1": {"10.0.0.2": 3e5}, "h2": {"10.0.0.1": 2e5}}, ADDRESSES)
    assert found is not None
    assert found.hosts == ("h1", "h2")


@pytest.mark.parametrize(
    "queues",
    [
        {},
        {"h2": {"10.0.0.1": 2000.0}},
        {"h1": {"10.0.0.2": 2e5}, "h2": {"10.0.0.3": 2e5}, "h3": {"10.0.0.1": 2e5}},
        {"h1": {"10.0.0.1": 9e6}},
    ],
    ids=["nothing waits", "hardly anything waits", "as much everywhere", "only on the host itself"],
)
def test_no_network_is_blamed_where_none_is_slow(queues: dict[str, dict[str, float]]):
    assert network_stall.slow_network(queues, ADDRESSES) is None


# --- why, in words ------------------------------------------------------------------------------------------

SLOW = Slow(ranks=(2,), step=0.31, others=0.25, since=0.0)
H200 = GpuState(index=2, name="H200", clock=1980)


def evidence(**seen: Any) -> Evidence:
    none = dict.fromkeys(("cpu", "cpu_wait", "disk", "read", "throttled", "throttles"), 0.0)
    return {**none, "cpus": 0, "quota": None, "neighbor": None, "gpu": None, "places": (), **seen}  # type: ignore[return-value]


def reason(**of_the_slow_one: Any) -> str:
    others = {rank: evidence(cpu=0.5, gpu=H200) for rank in (0, 1, 3)}
    return explain(SLOW, {**others, 2: evidence(**{"cpu": 0.5, "gpu": H200, **of_the_slow_one})})


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"throttled": 0.2, "quota": 0.8}, "A cgroup quota limits it to 0.8 of a CPU"),
        ({"throttled": 0.2, "quota": 2.0, "cpu_wait": 0.3}, "A cgroup quota limits it to 2 CPUs"),
        (
            {"cpu_wait": 0.22, "neighbor": {"name": "ffmpeg", "pid": 77, "cpu": 0.94}},
            "Other processes use its CPUs; it waits for one 22 % of the time (ffmpeg, process 77, uses 0.9 CPUs)",
        ),
        ({"disk": 0.2, "read": 1.25e6}, "It waits for its disk 20 % of the time (1.2 MB/s read)"),
        (
            {"gpu": GpuState(index=2, name="H200", clock=1005, throttled="too hot")},
            "Its GPU 2 runs at 1005 MHz vs. 1980 MHz on the other ranks (too hot)",
        ),
        (
            {"gpu": GpuState(index=2, name="H200", throttled="external power brake")},
            "Its GPU 2 is throttled (external power brake)",
        ),
        ({"cpu": 0.9}, "It uses more CPU: 0.90 CPUs vs. 0.50 on the other ranks"),
        (
            {"places": ("data.py:33 in read", "train.py:8 in step", "data.py:33 in read"), "cpu_wait": 0.02},
            "Its own code is slower; CPU, disk and GPU look normal. Most often seen at data.py:33 in read",
        ),
    ],
)
def test_the_reason_is_what_the_slow_rank_suffers_from_and_the_others_do_not(seen: dict[str, Any], said: str):
    assert reason(**seen) == said


def test_what_all_ranks_suffer_from_is_no_reason():
    seen = {rank: evidence(cpu_wait=0.3, throttled=0.4, quota=2.0) for rank in range(4)}
    assert explain(SLOW, seen).startswith("Its own code is slower")


def test_nothing_is_said_of_reasons_where_nothing_was_seen():
    assert explain(SLOW, {}) == ""


def test_the_sentence_says_who_where_by_how_much_and_why():
    assert sentence(SLOW, {2: "box"}, "It is old") == (
        "rank 2 on box is slowing the job down: 0.31 s per step vs. 0.25 s (+24 %). It is old"
    )
    two = Slow(ranks=(3, 2), step=0.06, others=0.05, since=0.0)
    assert sentence(two, {2: "b", 3: "b"}, "") == (
        "ranks 2, 3 on b are slowing the job down: 60 ms per step vs. 50 ms (+20 %)"
    )
    assert gone(SLOW, {2: "box"}) == "rank 2 on box is no longer slowing the job down"
