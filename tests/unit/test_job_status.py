"""What the controller knows of its job, gathered from events."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from messages import EVENTS, publish
from sample_status import make_status

from muster.controller.diagnosis.verdict import Verdict
from muster.controller.monitor import job_status as board_module
from muster.controller.monitor.job_files import JobFiles
from muster.controller.monitor.job_status import JobStatus
from muster.controller.monitor.rank_status import gpu_of
from muster.hosts import parse_hosts
from muster.jobs.state import JobState, Moment, Report, from_data
from muster.output.log_files import LogFiles
from muster.plan import Plan, make_plan


def progress(rank: int, **fields: Any) -> dict[str, Any]:
    return {"t": "progress", "rank": rank, "time": 0.0, "done": 0, "first": False, **fields}


def exited(rank: int, status: int, stopped_at: float | None = None) -> dict[str, Any]:
    return {"t": "exit", "rank": rank, "status": status, "time": 5.0, "stopped_at": stopped_at}


def states(status: JobStatus) -> list[str]:
    return [rank.state for rank in status.state().ranks]


def test_a_job_goes_through_its_phases():
    status, _ = make_status()
    assert (status.phase, status.state().world_size) == ("running", 2)
    status.stopping()
    assert status.state().phase == "stopping"
    status.ended(3, "rank 1 failed")
    status.tick("something else")
    state = status.state()
    assert (state.phase, state.exit_code, state.sentence) == ("ended", 3, "rank 1 failed")


def test_all_ranks_are_started_once():
    status, _ = make_status()
    told: list[int] = []
    status.on_started = lambda: told.append(1)
    status.started()
    status.started()
    assert told == [1]


def test_what_a_running_job_waits_for_is_its_sentence():
    status, _ = make_status()
    status.tick("1 of 2 hosts up, waiting for h2")
    assert status.state().sentence == "1 of 2 hosts up, waiting for h2"


def test_ranks_are_what_their_events_say():
    status, link = make_status(5)
    publish(status, link, progress(0, groups={"0": [3, 2]}))
    gauges = EVENTS["gauges"]["ranks"]["0"]
    ranks = {"1": {**gauges, "state": "T"}, "2": {**gauges, "state": "D"}}
    publish(status, link, {"t": "gauges", "time": 0.0, "host": {}, "ranks": ranks})
    publish(status, link, exited(3, 0))
    publish(status, link, exited(4, -9))
    assert states(status) == ["waiting", "stopped", "disk", "ended", "failed"]
    assert status.state().ranks[4].exit_code == 137


def test_a_rank_that_muster_ended_has_neither_failed_nor_finished():
    status, link = make_status(4)
    publish(status, link, exited(0, -15, stopped_at=4.0))
    publish(status, link, exited(1, 1, stopped_at=6.0))
    publish(status, link, exited(2, 0, stopped_at=4.0))
    publish(status, link, exited(3, 0))
    assert states(status) == ["canceled", "failed", "canceled", "ended"]


def test_a_lost_host_takes_its_ranks_along():
    status, link = make_status()
    publish(status, link, {"t": "host", "state": "lost"})
    assert states(status) == ["lost", "lost"]
    assert status.state().hosts[0].state == "lost"


def test_a_step_rate_is_that_of_the_last_seconds_and_sinks_when_nothing_comes(monkeypatch: pytest.MonkeyPatch):
    status, link = make_status(1)
    clock = 100.0
    monkeypatch.setattr(board_module.time, "monotonic", lambda: clock)
    for second in range(30):
        clock = 100.0 + second
        publish(status, link, progress(0, time=clock, steps=second * (100 if second < 10 else 5)))
    assert status.state().ranks[0].step_rate == pytest.approx(5.0)
    clock += 6
    assert status.state().ranks[0].step_rate == pytest.approx(50 / 16, rel=0.1)
    clock += 10
    assert status.state().ranks[0].step_rate == 0.0


def test_a_rate_of_collectives_gives_way_to_that_of_steps():
    status, link = make_status(1)
    for second in range(6):
        publish(status, link, progress(0, time=float(second), done=second * 50, steps=max(0, second - 3)))
    assert status.state().ranks[0].step_rate == pytest.approx(1.0)


def test_a_rate_is_right_where_messages_arrive_late_and_all_at_once():
    status, link = make_status(1)
    for second in range(4):  # published within microseconds
        publish(status, link, progress(0, time=50.0 + second, steps=1 + 10 * second))
    assert status.state().ranks[0].step_rate == pytest.approx(10.0)


def test_two_messages_right_after_each_other_are_no_rate():
    status, link = make_status(1)
    publish(status, link, progress(0, time=50.0, steps=1))
    publish(status, link, progress(0, time=50.1, steps=5))
    assert status.state().ranks[0].step_rate is None


def test_the_ranks_that_a_hang_names_are_hung_until_it_is_over():
    status, link = make_status(3)
    for rank in range(3):
        publish(status, link, progress(rank, groups={"0": [3, 2 if rank else 3]}))
    status.reports.append(Report(kind="hang", time=100.0, sentence="rank 0 is in next_batch", ranks=(0,)))
    status.hung_since = 90.0
    assert states(status) == ["hung", "waiting", "waiting"]
    status.hung_since = None
    assert states(status) == ["running", "waiting", "waiting"]


def test_the_location_of_a_failed_rank_is_where_it_failed():
    status, link = make_status(2)
    raised = {"t": "exception", "time": 4.0, "summary": "ValueError", "message": "", "done": 3, "place": "train.py:91"}
    for rank in range(2):
        publish(status, link, progress(rank, place="data.py:33 in next_batch"))
    publish(status, link, {**raised, "rank": 1})
    publish(status, link, exited(1, 1))
    assert [rank.place for rank in status.state().ranks] == ["data.py:33 in next_batch", "train.py:91"]


def test_a_rank_that_had_raised_before_muster_ended_it_has_failed():
    status, link = make_status(1)
    raised = {"t": "exception", "time": 3.0, "summary": "RuntimeError", "message": "", "done": 3}
    publish(status, link, {**raised, "rank": 0})
    publish(status, link, exited(0, 1, stopped_at=4.0))
    assert states(status) == ["failed"]


def test_a_rank_that_muster_killed_after_its_exception_has_the_exit_code_of_the_exception():
    status, link = make_status(1)
    raised = {"t": "exception", "time": 3.0, "summary": "RuntimeError", "message": "", "done": 3}
    publish(status, link, {**raised, "rank": 0})
    publish(status, link, exited(0, -15, stopped_at=4.0))
    assert (states(status), status.state().ranks[0].exit_code) == (["failed"], 1)


def test_the_start_is_over_when_every_rank_has_finished_a_collective():
    status, link = make_status()
    publish(status, link, progress(0, time=status.begin + 2, done=1, first=True))
    assert "first collective" not in status.state().phases
    publish(status, link, progress(1, time=status.begin + 3, done=1, first=True))
    assert status.state().phases["first collective"] == pytest.approx(3.0)


def plan_of(status: JobStatus, *hosts: str) -> Plan:
    return make_plan(status.job.id, parse_hosts(",".join(hosts)), threads=[0] * len(hosts), restarts=0, user_env={})


def hosts_of(status: JobStatus) -> dict[str, tuple[str, str, str]]:
    return {host.name: (host.state, host.role, host.why) for host in status.state().hosts}


def test_an_attempt_may_run_on_other_hosts_than_the_one_before():
    status, link = make_status(2)
    status.set_host("h2", phase="up", role="spare")
    publish(status, link, {"t": "host", "state": "lost"})
    status.attempt_lost("lost h1: no message for 5.0 s")
    status.attempt_begins(1, plan_of(status, "h2:4"), {"h2": "h1"})
    state = status.state()
    assert (state.attempt, state.world_size, state.host_losses) == (1, 4, 1)
    assert [rank.host for rank in state.ranks] == ["h2"] * 4
    assert hosts_of(status) == {"h1": ("lost", "", ""), "h2": ("up", "ranks", "")}
    first, second = state.attempts
    assert (first.number, first.world_size, first.hosts) == (0, 2, ("h1",))
    assert first.lost_to == "lost h1: no message for 5.0 s"
    assert (second.number, second.world_size, second.hosts, second.swaps) == (1, 4, ("h2",), {"h2": "h1"})
    assert (second.lost_at, second.recovery) == (None, None)
    assert from_data(json.loads(json.dumps(state.as_data()))) == state


def test_a_host_that_returns_is_a_spare_when_the_next_attempt_begins():
    status, _ = make_status()
    status.set_host("h1", phase="lost", why="power failure")
    assert hosts_of(status) == {"h1": ("lost", "", "power failure")}
    status.set_host("h1", phase="returning")
    assert hosts_of(status) == {"h1": ("returning", "", "")}
    status.set_host("h1", phase="up", role="spare")
    status.set_host("h2", phase="up")
    status.attempt_begins(1, plan_of(status, "h2:2"), {})
    assert hosts_of(status) == {"h1": ("up", "spare", ""), "h2": ("up", "ranks", "")}
    changes = [(change.host, change.state, change.why) for change in status.state().host_changes]
    assert changes == [("h1", "lost", "power failure"), ("h1", "up", "")]
    for _ in range(500):
        status.set_host("h1", phase="lost")
        status.set_host("h1", phase="up")
    assert len(status.state().host_changes) == 200


def test_a_host_that_was_never_reached_is_lost_when_the_job_begins_without_it():
    status, _ = make_status()
    status.set_host("h2", phase="connecting")
    status.attempt_begins(1, plan_of(status, "h1:2"), {})
    assert hosts_of(status) == {"h1": ("up", "ranks", ""), "h2": ("lost", "", "not reached yet")}
    assert status.state().host_losses == 0


def test_a_draining_host_stays_so_until_it_is_lost_and_a_bad_one_forever():
    status, link = make_status()
    status.set_host("h1", phase="draining", why="spot notice", deadline=100.0)
    publish(status, link, {"t": "host", "state": "silent"})
    publish(status, link, {"t": "host", "state": "up"})
    assert hosts_of(status) == {"h1": ("draining", "ranks", "spot notice")}
    assert status.state().hosts[0].deadline == 100.0
    publish(status, link, {"t": "host", "state": "lost"})
    assert (hosts_of(status), status.state().hosts[0].deadline) == ({"h1": ("lost", "", "")}, None)
    status.set_host("h1", phase="bad", why="Xid 79")
    publish(status, link, {"t": "host", "state": "lost"})
    assert hosts_of(status) == {"h1": ("bad", "", "Xid 79")}


def test_recovery_lasts_from_the_loss_to_the_first_collective_of_all_ranks(monkeypatch: pytest.MonkeyPatch):
    status, link = make_status()
    clock = lost = time.time()
    monkeypatch.setattr(board_module.time, "time", lambda: clock)
    publish(status, link, exited(1, 1))  # noticed here; the ranks are ended and the reason is known later
    clock += 1
    status.stopping()
    status.failed(Verdict(exit_code=1, sentence="rank 1 failed first"))
    status.attempt_begins(1, plan_of(status, "h1:2"), {})
    publish(status, link, progress(0, time=lost + 2, done=1, first=True))
    assert status.state().attempts[1].recovery is None
    publish(status, link, progress(1, time=lost + 3, done=1, first=True))
    first, second = status.state().attempts
    assert first.lost_to == "rank 1 failed first"
    assert (first.recovery, second.recovery) == (None, pytest.approx(3.0))
    assert "first collective" not in status.state().phases


@pytest.mark.parametrize(
    ("has_ended", "why"), [(True, "requeueing Slurm job 12 (1 of 3)"), (False, "its controller was killed")]
)
def test_a_requeued_job_continues_the_attempts_of_its_earlier_controller(tmp_path: Path, has_ended: bool, why: str):
    before, link = make_status()
    publish(before, link, {"t": "host", "state": "lost"})
    if has_ended:
        before.ended(0, why)
    earlier = before.state()
    (tmp_path / "state.json").write_text(json.dumps(earlier.as_data()))
    status, link = make_status()
    JobFiles(status, tmp_path, LogFiles(print))
    status.attempt_begins(1, plan_of(status, "h1:2"), {})
    state = status.state()
    assert [attempt.number for attempt in state.attempts] == [0, 1]
    assert (state.attempts[0].lost_at, state.attempts[0].lost_to) == (earlier.now, why)
    assert (state.attempt, state.host_losses) == (1, 1)


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"attempts": 3}'])
def test_a_requeued_job_whose_earlier_state_is_damaged_begins_again(tmp_path: Path, text: str):
    (tmp_path / "state.json").write_text(text)
    status, _ = make_status()
    JobFiles(status, tmp_path, LogFiles(print))
    assert [attempt.number for attempt in status.state().attempts] == [0]


def test_of_very_many_attempts_the_newest_are_kept():
    status, _ = make_status()
    for number in range(1, 1000):
        status.failed(Verdict(exit_code=1, sentence=f"rank 0 failed in {number - 1}"))
        status.attempt_begins(number, plan_of(status, "h1:2"), {})
    assert [attempt.number for attempt in status.state().attempts] == list(range(800, 1000))
    assert [failure.attempt for failure in status.state().failures] == list(range(949, 999))
    many = [f"gpu{number}" for number in range(400)]
    status.attempt_begins(1000, plan_of(status, *[f"{name}:1" for name in many]), {})
    assert [attempt.number for attempt in status.state().attempts] == list(range(976, 1001))


def test_the_history_has_what_each_host_used(monkeypatch: pytest.MonkeyPatch):
    status, link = make_status()
    gpus = [{"index": 0, "name": "H100", "use": 0.5}, {"index": 1, "name": "H100", "use": 1.0}]
    host = {"cpu_use": 0.12345, "memory_used": 1, "memory_total": 4, "network_in": 10.4, "gpus": gpus}
    publish(status, link, {"t": "gauges", "time": 0.0, "host": host, "ranks": {}})
    status.tick()
    assert status.state().history[-1].hosts == {"h1": (0.123, 0.25, 0.75, 10, None)}


def test_the_curves_span_the_whole_job_and_stay_short(monkeypatch: pytest.MonkeyPatch):
    status, link = make_status(64)
    for rank in range(64):
        publish(status, link, progress(rank, waiting=0.123456))
    clock = begin = time.time()
    monkeypatch.setattr(board_module.time, "time", lambda: clock)
    for tick in range(20_000):
        clock = begin + tick
        status.tick()
    history = status.state().history
    assert history[0].time == begin
    assert history[-1].time > begin + 19_900
    assert 64 * len(history) <= 30_000
    assert history[0].waiting[3] == 0.123


def test_a_state_survives_json_and_is_made_quickly():
    status, link = make_status(64)
    for rank in range(64):
        publish(status, link, progress(rank, waiting=0.5, steps=3, place="train.py:8 in step"))
    for _ in range(3):
        status._history.append(Moment(time=1.0, step_rate=2.0, waiting={0: 0.5}))
    status.reports.append(Report(kind="hang", time=1.0, sentence="it hangs", ranks=(2,), stacks={2: "File x"}))
    status.stuck = ("h1",)
    status.failed(Verdict(exit_code=1, sentence="rank 1 failed first", detail="Traceback", why="memory is full"))
    status.phases["connected"] = 0.2
    state = status.state()
    assert from_data(json.loads(json.dumps(state.as_data()))) == state
    begin = time.thread_time()
    for _ in range(20):
        status.state(history=False).as_data()
    assert (time.thread_time() - begin) / 20 < 0.01  # 0.5 ms in truth


def test_a_state_is_cut_to_what_is_wanted():
    moments = tuple(Moment(time=float(second), step_rate=None, waiting={}) for second in range(5))
    report = Report(kind="stacks", time=0.0, sentence="s", stacks={0: "x"})
    fields = {"command": "", "cwd": "", "engine": "", "begin": 0.0, "now": 0.0, "controller": 1, "host": ""}
    state = JobState(id="x", phase="running", history=moments, reports=(report,), **fields)
    assert [moment.time for moment in state.cut(since=2.0).history] == [3.0, 4.0]
    assert state.cut(stacks=False).reports[0].stacks == {}
    assert state.cut() == state


def test_a_state_of_another_version_is_read_as_far_as_it_is_known():
    status, _ = make_status()
    data = {**status.state().as_data(), "new": 1, "ranks": [{"rank": 0, "host": "h1", "local_rank": 0, "new": 2}]}
    data.pop("stuck")
    assert from_data(data).ranks[0].host == "h1"
    assert from_data(data).controller == os.getpid()


@pytest.mark.parametrize(
    ("chosen", "visible", "count", "gpus"),
    [
        (None, None, 0, [None, None]),
        (None, None, 2, [0, 1]),
        ((5, 2), None, 8, [5, 2]),
        (None, "6,7", 2, [6, 7]),
        ((1, 0), "6,7", 2, [7, 6]),
        (None, "GPU-1b2c,GPU-3d4e", 2, [None, None]),
        (None, "", 0, [None, None]),
    ],
)
def test_the_gpu_of_a_rank_is_the_one_its_driver_means(
    chosen: tuple[int, ...] | None, visible: str | None, count: int, gpus: list[int | None]
):
    assert [gpu_of(chosen, visible, count, local) for local in range(2)] == gpus
