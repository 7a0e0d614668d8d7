"""What a job does between two attempts: which hosts it uses, when it grows, and when it gives up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from muster.controller import host_return
from muster.controller.attempt import Attempt
from muster.controller.controller import Controller
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.gpu_questions import failed_gpus
from muster.controller.host_pool import Member, Shortage
from muster.controller.host_return import HostReturns
from muster.controller.recovery import Recovery
from muster.errors import HostError, MusterError
from muster.spec import RunSpec

pytestmark = pytest.mark.timeout(60)


class Hosts(Recovery):
    """The recovery of a job with one rank on each host, all of them up."""

    def __init__(self, names: str, **options: Any) -> None:
        self.said: list[str] = []
        self.phases: dict[str, str] = {}
        spec = RunSpec(target="train.py", **{"restarts": 3, **options})
        facts = {"gpus": [], "cpus": 1}
        host = SimpleNamespace(slots=1)
        self.links = {
            name: SimpleNamespace(name=name, silence=0.0, lost=None, facts=facts, spec=SimpleNamespace(host=host))
            for name in names
        }
        leaders = list(self.links.values())
        agents = SimpleNamespace(leader=self.links.__getitem__, leaders=leaders, usable=leaders)

        def set_host(name: str, phase: str, **_: object) -> None:
            self.phases[name] = phase

        status = SimpleNamespace(set_host=set_host, attempt_lost=self.said.append)
        screen = SimpleNamespace(warning=self.said.append)
        parts: Any = SimpleNamespace(
            job=SimpleNamespace(spec=spec, first_attempt=0),
            agents=agents,
            status=status,
            screen=screen,
            preparation=None,
            requeue=SimpleNamespace(is_warned=False),
        )
        super().__init__(parts)
        members = {name: Member(name=name, slots=1) for name in names}
        self.roster._slots = lambda link: 1  # pyright: ignore[reportPrivateUsage]
        self.roster.enroll()
        assert {member.name: member for member in self.members} == members

    def begin(self, *, ended_well: list[int] | None = None) -> Any:
        """An attempt that has run for an hour."""
        attempt = self.attempt = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
            start=time.time() - 3600,
            over=asyncio.Event(),
            planned="",
            drain=None,
            ended_well=ended_well or [],
            on_loss=lambda host, why, **_: None,
        )
        attempt.end_as_planned = lambda why: Attempt.end_as_planned(attempt, why)
        return attempt

    async def scheduler_reason(self, *, hit: bool = False) -> str | None:
        return None

    def lose(self, name: str) -> None:
        self.links[name].lost = SimpleNamespace(why="power")
        self.on_loss(name, "power")

    def come_back(self, name: str) -> None:
        self.links[name].lost = None
        self.roster._on_ready(name)  # pyright: ignore[reportPrivateUsage]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_job_that_cannot_continue_after_a_planned_restart_has_not_succeeded():
    async def main() -> None:
        hosts = Hosts("abc", spares=1)
        hosts.begin().end_as_planned("b: muster drain")
        hosts.retire("b", "muster drain", phase="draining")
        verdict = hosts._given_up(Verdict(exit_code=0))  # pyright: ignore[reportPrivateUsage]
        assert verdict.exit_code == 143
        assert verdict.sentence == "the job could not continue after a planned restart (b: muster drain)"

    run(main)


def test_a_job_that_starts_without_a_spare_says_so():
    async def main() -> None:
        hosts = Hosts("abc", spares=1)
        hosts.lose("c")
        plan: Any = SimpleNamespace(placements=[], world_size=2)
        hosts.roster.seat = lambda found: plan  # pyright: ignore[reportAttributeAccessIssue]
        hosts.first_plan()
        assert hosts.said[-1] == "starting without c: not all spares are up"
        await hosts.close()

    run(main)


def test_progress_before_a_planned_restart_makes_earlier_failures_free():
    async def main() -> None:
        hosts = Hosts("abc", spares=1)
        attempt = hosts.begin()
        attempt.progress, attempt.has_saved = 10, True
        attempt.end_as_planned("b: muster drain")
        budget = hosts._budget  # pyright: ignore[reportPrivateUsage]
        budget.used = 3
        assert await hosts._final(Verdict(exit_code=0)) is None  # pyright: ignore[reportPrivateUsage]
        assert budget.used == 0

    run(main)


def shrunken(**attempt: Any) -> tuple[Hosts, Any]:
    """A job that runs without b, which has returned."""
    hosts = Hosts("ab", min_hosts=1, rejoin=0.0001)
    hosts.lose("b")
    found = hosts.roster.next()
    assert not isinstance(found, Shortage)
    hosts.roster.seats = found.seats
    hosts.roster.begin()
    running = hosts.begin(**attempt)
    hosts.come_back("b")
    return hosts, running


async def a_moment() -> None:
    """Let timers run that are due."""
    await asyncio.sleep(0.05)


def test_a_job_grows_when_a_host_has_returned():
    async def main() -> None:
        _, attempt = shrunken()
        await asyncio.wait_for(attempt.over.wait(), 30)
        assert attempt.planned == "2 hosts are ready (--rejoin 0.0001s)"

    run(main)


def test_a_job_does_not_grow_for_a_host_that_is_lost_again():
    async def main() -> None:
        hosts, attempt = shrunken()
        hosts.lose("b")
        await a_moment()
        assert not attempt.over.is_set()

    run(main)


def test_a_job_does_not_grow_while_its_ranks_finish_or_save():
    async def main() -> None:
        _, finishing = shrunken(ended_well=[0])
        _, saving = shrunken()
        saving.drain = lambda: None
        await a_moment()
        assert not finishing.over.is_set()
        assert not saving.over.is_set()

    run(main)


@pytest.mark.parametrize(("silent", "is_worth"), [("c", False), ("cd", True), ("", True)])
def test_a_silent_spare_is_left_only_for_one_that_answers(silent: str, is_worth: bool):
    async def main() -> None:
        hosts = Hosts("abcd", spares=2)
        hosts.lose("b")
        found = hosts.roster.next()
        hosts.roster.swaps, hosts.roster.seats = found.swaps, found.seats  # pyright: ignore
        for name in silent:
            hosts.links[name].silence = 3.0
        meeting: Any = asyncio.ensure_future(asyncio.sleep(1.0))
        assert await hosts._is_worth_waiting(meeting) == is_worth  # pyright: ignore[reportPrivateUsage]

    run(main)


def test_a_bad_host_stays_out_when_its_agent_returns_but_a_cleared_suspect_does_not():
    async def main() -> None:
        hosts = Hosts("ab", min_hosts=1)
        hosts.lose("b")
        hosts.retire("b", "GPU 3 fell off the bus")
        hosts.come_back("b")
        assert hosts.roster.retired == {"b"}
        assert hosts.phases["b"] == "bad"
        hosts.roster.enroll()
        assert hosts.roster.retired == {"b"}
        hosts.restore("b")
        assert hosts.roster.is_ready("b")

    run(main)


def test_a_host_that_is_being_brought_back_is_not_prepared_twice():
    async def main() -> None:
        hosts = Hosts("abc", spares=1)
        hosts.lose("b")
        hosts.links["b"].lost = None  # its new agent is up, but not prepared
        assert hosts.roster.enroll()
        assert hosts.roster.away == ["b"]
        await hosts.close()
        hosts.come_back("b")
        hosts.roster.enroll()
        assert hosts.roster.is_ready("b")

    run(main)


def test_a_host_that_comes_and_goes_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_return, "FIRST_PAUSE", 0.001)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def main() -> None:
        link = SimpleNamespace(name="a")
        ready = asyncio.Event()

        async def reconnect(name: str, limit: float) -> Any:
            return link

        async def again(link: Any, others: Any) -> None:
            pass

        agents = SimpleNamespace(
            leader=lambda name: link, reconnect=reconnect, usable=[link], comes_by_itself=lambda name: False
        )
        status = SimpleNamespace(set_host=lambda name, phase: None)
        screen = SimpleNamespace(warning=print)
        parts: Any = (agents, SimpleNamespace(again=again), status, screen, lambda name: ready.set())
        returns = HostReturns(*parts)
        monkeypatch.setattr(asyncio, "sleep", note)
        for _ in range(3):
            ready.clear()
            returns.expect("a")
            await asyncio.wait_for(ready.wait(), 30)
        await returns.close()
        returns.expect("a")
        assert len(returns._tasks) == 1  # pyright: ignore[reportPrivateUsage]
        assert all(task.done() for task in returns._tasks.values())  # pyright: ignore[reportPrivateUsage]

    run(main)
    assert pauses == [0.001, 0.002, 0.004]


def test_an_error_of_a_job_that_lost_a_host_before_is_reported_once():
    """A loss is a reason to prepare the others again, but not every time from then on."""
    tried: list[int] = []

    async def fail() -> Any:
        tried.append(1)
        links[1].lost = True
        raise MusterError("no such file: train.py")

    links = [SimpleNamespace(name=name, lost=None) for name in "ab"]

    class Agents:
        @property
        def usable(self) -> list[Any]:
            return [link for link in links if not link.lost]

    recovery = SimpleNamespace(is_elastic=True, roster=SimpleNamespace(enroll=lambda: True))
    controller: Any = SimpleNamespace(agents=Agents(), recovery=recovery, prepare_hosts=fail)
    with pytest.raises(MusterError, match="no such file"):
        asyncio.run(Controller.prepare(controller))
    assert len(tried) == 2


def test_hosts_are_chosen_again_if_one_is_drained_while_they_meet():
    async def main() -> None:
        hosts = Hosts("abc", spares=1)
        plan: Any = SimpleNamespace(placements=[SimpleNamespace(name="a"), SimpleNamespace(name="b")])
        assert hosts._is_current(plan)  # pyright: ignore[reportPrivateUsage]
        hosts.retire("b", "muster drain", phase="draining")
        assert not hosts._is_current(plan)  # pyright: ignore[reportPrivateUsage]
        hosts.retire("c", "muster drain", phase="draining")
        assert hosts._is_current(plan), "it must run on b then"  # pyright: ignore[reportPrivateUsage]

    run(main)


def test_a_host_that_is_lost_while_the_gpus_are_asked_does_not_matter():
    class Link(SimpleNamespace):
        async def request(self, do: str, **fields: Any) -> Any:
            self.lost = "power" if self.name == "b" else None
            raise HostError(self.name, "lost")

    links: Any = [Link(name=name, lost=None) for name in "ab"]
    assert asyncio.run(failed_gpus(links)) == {}
