"""Notices that a host is about to go away: who is signaled, when the ranks are stopped, and what follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until_async

from muster.cli import drain as drain_command
from muster.controller.draining import SAVE_LIMIT, Drain, leaving
from muster.controller.events import EventStream, Guard
from muster.controller.host_pool import Member, Seating, Shortage, first_seats, next_seating
from muster.errors import MusterError, UsageError
from muster.spec import RunSpec

pytestmark = pytest.mark.timeout(60)


class Link:
    """An agent that answers at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = {"cpus": 1}
        self.lost = None
        self.clock_offset = 100.0
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def request(self, do: str, *, limit: float, **fields: Any) -> dict[str, Any]:
        self.asked.append((do, fields))
        return {"ranks": [0], "unheard": []}


class Roster:
    """The hosts of a job."""

    def __init__(self, hosts: str, spec: RunSpec) -> None:
        self.members = [Member(name=name, slots=1) for name in hosts]
        self.spec = spec
        self.seats = first_seats(self.members, spec.spares)

    def is_used(self, name: str) -> bool:
        return any(seat.host == name for seat in self.seats)

    def next(self, *, without: set[str] | None = None) -> Seating | Shortage:
        left = [member for member in self.members if member.name not in (without or ())]
        return next_seating(left, self.seats, whole=self.seats, min_hosts=self.spec.min_hosts)


class Job:
    """A running job whose last hosts are spares."""

    def __init__(self, hosts: str, **options: Any) -> None:
        self.spec = RunSpec(target="train.py", **options)
        self.links = [Link(name) for name in hosts]
        self.said: list[str] = []
        self.calls: list[tuple[str, ...]] = []
        roster = Roster(hosts, self.spec)
        used = [seat.host for seat in roster.seats]
        self.attempt = SimpleNamespace(
            plan=SimpleNamespace(placements=[SimpleNamespace(name=name) for name in used], world_size=len(used)),
            over=asyncio.Event(),
            running=list(range(len(used))),
            ended_well=list[int](),
            drain=None,
            drained=None,
        )
        self.recovery = SimpleNamespace(
            attempt=self.attempt,
            roster=roster,
            requeue=SimpleNamespace(is_possible=False),
            retire=lambda host, why, phase: self.calls.append(("retire", host, why, phase)),
            replace=lambda host, why, phase: self.calls.append(("replace", host, why, phase)),
        )
        self.phases: dict[str, str] = {}
        status = SimpleNamespace(
            job=SimpleNamespace(id="j"), set_host=lambda host, phase, why, deadline: self.phases.update({host: phase})
        )
        engine = SimpleNamespace(sigterm_is_notice=False)
        agents = SimpleNamespace(links=self.links, leaders=self.links, launch=SimpleNamespace(engine=engine))
        self.events = EventStream(Guard(print))
        parts: Any = (self.spec, agents, status, self.recovery, self.events, self.said.append)
        self.drain = Drain(*parts)

    def notice(self, host: str, left: float, why: str = "AWS") -> None:
        link: Any = next(link for link in self.links if link.name == host)
        self.events.publish(link, {"t": "notice", "left": left, "why": why})

    def deadlines(self, host: str) -> list[tuple[float, int]]:
        """The deadlines that its agent was sent, by our clock, and the signals."""
        link = next(link for link in self.links if link.name == host)
        sent = [fields for do, fields in link.asked if do == "deadline"]
        return [(fields["time"] - link.clock_offset, fields["signal"]) for fields in sent]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_the_last_seconds_are_for_the_takeover():
    assert leaving(120, "", 1000).stop == 1115
    assert leaving(120, "", 1000).deadline == 1120
    assert leaving(8, "", 1000).stop == 1006
    assert leaving(0, "", 1000).stop == 1000
    assert leaving(None, "", 1000).stop == 1000 + SAVE_LIMIT
    assert leaving(None, "", 1000).deadline is None


def test_all_ranks_are_signaled_once_with_the_deadline_of_their_own_clock():
    async def main() -> None:
        job = Job("abcd", spares=1)
        job.notice("b", 100)
        job.notice("c", 200)
        await wait_until_async("the deadlines", lambda: job.deadlines("c"))
        for host in "abc":
            ((deadline, number),) = job.deadlines(host)
            assert deadline == pytest.approx(time.time() + 95, abs=5)
            assert number == 10
        assert not job.deadlines("d"), "a spare has no ranks"
        assert job.calls == [("retire", "b", "AWS", "draining"), ("retire", "c", "AWS", "draining")]
        assert job.phases == {"b": "draining", "c": "draining"}
        assert job.said[0] == "b has 100 s left (AWS); all ranks get SIGUSR1 and 95 s to save, then d takes over"

    run(main)


def test_an_earlier_deadline_reaches_the_ranks_without_a_second_signal():
    async def main() -> None:
        job = Job("abc", min_hosts=1, drain_signal="TERM")
        job.notice("b", 100)
        job.notice("b", 99.5)
        job.notice("c", 20)
        await wait_until_async("both deadlines", lambda: len(job.deadlines("a")) == 2)
        assert [number for _, number in job.deadlines("a")] == [15, 0]
        assert job.deadlines("a")[1][0] == pytest.approx(time.time() + 15, abs=5)
        assert job.said[-1] == (
            "c has 20 s left (AWS); the ranks have been signaled and 15 s to save, then the job continues on 1 host"
        )

    run(main)


def test_hosts_are_replaced_when_all_ranks_have_ended():
    async def main() -> None:
        job = Job("abcd", spares=2)
        job.notice("a", 100)
        job.notice("b", 100)
        job.calls.clear()
        job.attempt.running = []
        job.attempt.drain()
        assert job.calls == [("replace", "a", "AWS", "draining"), ("replace", "b", "AWS", "draining")]
        assert job.said[-1].startswith("all ranks ended ")

    run(main)


def test_ranks_that_do_not_end_are_stopped_in_time():
    async def main() -> None:
        job = Job("abc", spares=1)
        job.notice("a", 0.1)
        while len(job.calls) < 2:
            await asyncio.sleep(0.01)
        assert job.calls[-1] == ("replace", "a", "AWS", "draining")
        assert job.said[-1] == "ranks 0, 1 did not end in time"

    run(main)


def test_a_job_without_a_spare_ends_when_its_ranks_have_ended():
    async def main() -> None:
        job = Job("ab")
        job.notice("a", 100)
        assert job.said == [
            "a has 100 s left (AWS); all ranks get SIGUSR1 and 95 s to save, "
            "then the job ends, because it has no spare host"
        ]
        job.attempt.running = []
        job.attempt.drain()
        assert job.attempt.over.is_set()
        assert job.attempt.drained.exit_code == 143
        assert job.attempt.drained.is_lost, "a scheduler may continue it later"
        assert job.attempt.drained.sentence.startswith(
            "a has 100 s left (AWS), and the job has no spare host; all ranks"
        )

    run(main)


def test_ranks_that_are_stopped_after_a_failure_do_not_count_as_drained():
    async def main() -> None:
        job = Job("ab")
        job.notice("b", 40)
        job.attempt.over.set()  # for example because the job hung
        job.attempt.running.clear()
        job.attempt.drain()
        assert job.attempt.drained is None

    run(main)


def test_a_script_that_was_finishing_is_not_started_again():
    async def main() -> None:
        job = Job("abc", spares=1)
        job.attempt.ended_well = [1]
        job.notice("a", 100)
        job.calls.clear()
        job.attempt.running, job.attempt.ended_well = [], [0, 1]
        job.attempt.drain()
        assert job.attempt.over.is_set()
        assert not job.calls

    run(main)


def test_a_spare_that_goes_away_is_only_retired():
    async def main() -> None:
        job = Job("abc", spares=1)
        job.notice("c", 30)
        await asyncio.sleep(0)
        assert job.calls == [("retire", "c", "AWS", "draining")]
        assert not job.deadlines("a")
        assert job.said == ["c has 30 s left (AWS); no rank runs there, so it is no longer a spare"]

    run(main)


@pytest.mark.parametrize(
    ("host", "options", "sentence"),
    [
        ("x", {"spares": 1}, "host x is not in job j"),
        ("a", {}, "job j has no spare host that could replace a"),
        ("a", {"min_hosts": 3}, "job j has no spare host that could replace a"),
    ],
)
def test_muster_drain_refuses_with_one_sentence(host: str, options: Any, sentence: str):
    async def main() -> None:
        with pytest.raises(UsageError) as caught:
            Job("abc", **options).drain.request(host, None)
        assert caught.value.message == sentence
        assert caught.value.hint

    run(main)


def test_muster_drain_between_two_attempts_does_not_take_a_host_that_the_next_one_needs():
    async def main() -> None:
        job = Job("ab")
        job.attempt.over.set()
        with pytest.raises(UsageError, match="job j has no spare host that could replace a"):
            job.drain.request("a", None)
        assert (
            job.drain.request("a", 60) == "a has 60 s left (muster drain); no rank runs there, so it runs no more ranks"
        )

    run(main)


def test_muster_drain_of_a_draining_host_is_refused_unless_it_goes_away_sooner():
    async def main() -> None:
        job = Job("abc", spares=1)
        job.drain.request("a", 100)
        with pytest.raises(UsageError, match=r"a is already draining \(muster drain\)"):
            job.drain.request("a", 100)
        assert job.drain.request("a", 10).startswith("a has 10 s left (muster drain); the ranks have been signaled")

    run(main)


def test_muster_drain_of_a_host_without_ranks_can_be_repeated():
    async def main() -> None:
        job = Job("abc", spares=1)
        job.drain.request("c", None)
        assert job.drain.request("c", None) == "c is already drained (muster drain); no rank runs there"
        assert len(job.said) == 1

    run(main)


def test_ranks_that_did_not_end_in_time_are_not_reported_as_ended():
    async def main() -> None:
        job = Job("abc", spares=1)
        job.drain.request("a", 0)
        await wait_until_async("the time is over", lambda: "ranks 0, 1 did not end in time" in job.said)
        job.attempt.over.set()
        job.attempt.drain()
        assert "did not end in time" in job.said[-1]

    run(main)


def test_muster_drain_before_the_ranks_start_says_so():
    async def main() -> None:
        job = Job("abc", spares=1)
        job.recovery.attempt = None
        with pytest.raises(MusterError, match="job j has not started its ranks yet"):
            job.drain.request("a", None)

    run(main)


def test_agents_watch_for_notices_when_all_hosts_are_known():
    async def main() -> None:
        job = Job("ab", spares=1)
        members, job.recovery.roster.members = job.recovery.roster.members, []
        job.drain.tick()
        assert not job.links[0].asked
        job.recovery.roster.members = members
        job.drain.tick()
        await wait_until_async("the requests", lambda: job.links[0].asked)

    run(main)


def test_agents_watch_for_notices_only_where_that_is_useful():
    async def main() -> None:
        for options, expected in (
            ({}, []),
            ({"notice": "aws"}, [("notices", {"command": "aws", "sigterm": False})]),
            ({"spares": 1}, [("notices", {"command": "", "sigterm": True})]),
        ):
            job = Job("ab", **options)
            job.drain.tick()
            job.drain.tick()
            await wait_until_async("the requests", lambda job=job, expected=expected: job.links[0].asked == expected)

    run(main)


@pytest.mark.parametrize(
    ("exit_code", "code", "sentence"),
    [(None, 125, "ranks still run on a after"), (0, 0, "no rank runs on a, but the job has not continued yet")],
)
def test_muster_drain_says_what_is_true_when_it_stops_waiting(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    exit_code: int | None,
    code: int,
    sentence: str,
):
    state = SimpleNamespace(ranks=[SimpleNamespace(host="a", exit_code=exit_code)])
    monkeypatch.setattr(drain_command, "read_job", lambda folder: None)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(drain_command, "fresh", lambda job: SimpleNamespace(may_run=True, state=state))  # pyright: ignore
    wait: Any = drain_command._wait  # pyright: ignore[reportPrivateUsage]
    assert wait(SimpleNamespace(id="j", folder=None), "a", time.monotonic() - 5, 1, had_ranks=True) == code
    assert capsys.readouterr().err.startswith(f"muster: {sentence}")
