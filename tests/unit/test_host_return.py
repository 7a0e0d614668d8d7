"""Lost hosts are tried again with growing pauses, prepared, and reported once if they cannot be used."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from waiting import wait_until_async

from muster.controller import host_return
from muster.controller.host_return import HostReturns
from muster.errors import HostError


class Link:
    """The connection to an agent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False

    async def close(self, limit: float) -> None:
        self.is_closed = True


class Cluster:
    """Agents, preparation, status and screen in one, with a host that is unreachable at first, then unfit, then fit."""

    def __init__(self, *, unreachable: int, unfit: int) -> None:
        self.unreachable = unreachable
        self.unfit = unfit
        self.link = Link("b")
        self.made: list[Link] = []
        self.said: list[str] = []
        self.phases: list[str] = []
        self.usable: list[Link] = []

    def leader(self, name: str) -> Link:
        return self.link

    def comes_by_itself(self, name: str) -> bool:
        return False

    def put(self, link: Link) -> None:
        self.link = link

    async def reconnect(self, name: str, limit: float) -> Link:
        if self.unreachable:
            self.unreachable -= 1
            raise HostError(name, "no route to host")
        self.link = Link(name)
        self.made.append(self.link)
        return self.link

    async def again(self, link: Link, others: list[Link]) -> None:
        if self.unfit:
            self.unfit -= 1
            raise HostError(link.name, "train.py differs from the one on this machine")

    def set_host(self, name: str, *, phase: str, why: str = "") -> None:
        self.phases.append(phase)

    def warning(self, text: str) -> None:
        self.said.append(text)


def returns(cluster: Any, ready: list[str]) -> HostReturns:
    return HostReturns(cluster, cluster, cluster, cluster, ready.append)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_return, "FIRST_PAUSE", 0.001)


def test_a_host_is_tried_until_it_can_run_ranks() -> None:
    cluster, ready = Cluster(unreachable=3, unfit=2), list[str]()
    old = cluster.link

    async def main() -> None:
        back = returns(cluster, ready)
        back.expect("b")
        back.expect("b")  # one task does it
        await wait_until_async("the host is back", lambda: ready)
        await back.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert ready == ["b"]
    assert [link.is_closed for link in cluster.made] == [True, True, False]
    assert cluster.link is cluster.made[-1] is not old
    assert cluster.phases == ["returning", "lost", "returning", "lost", "returning"]
    assert cluster.said == [
        "b answers again, but it cannot be used yet: b: train.py differs from the one on this machine"
    ]


def test_a_zygote_that_cannot_be_started_again_costs_the_agent() -> None:
    cluster, ready = Cluster(unreachable=0, unfit=1), list[str]()
    first = cluster.link

    async def main() -> None:
        back = returns(cluster, ready)
        back.repair(cast("Any", first))
        assert back.repairing == {"b"}
        await wait_until_async("the host is back", lambda: ready)
        assert not back.repairing
        await back.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert first.is_closed
    assert not cluster.link.is_closed


def test_nothing_is_tried_after_the_end() -> None:
    cluster, ready = Cluster(unreachable=10**9, unfit=0), list[str]()

    async def main() -> None:
        back = returns(cluster, ready)
        back.expect("b")
        before = len(asyncio.all_tasks())
        await asyncio.sleep(0)
        await back.close()
        assert len(asyncio.all_tasks()) == before - 1

    asyncio.run(asyncio.wait_for(main(), 20))
    assert not ready
