"""Watching pods through an API server that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, cast

import pytest
from tests.waiting import wait_until_async

from muster.engines.kubernetes import pod_watch
from muster.engines.kubernetes.pod_watch import PodWatch
from muster.engines.kubernetes.pods import Pod
from muster.engines.kubernetes.proxy import Proxy, RequestError


class _EndsEveryWatch:
    def __init__(
        self, denied: tuple[int, ...] = (), events: tuple[Mapping[str, Any], ...] = ({"type": "ERROR"},)
    ) -> None:
        self.lists = 0
        self._denied = denied
        self._events = events

    async def get(self, path: str) -> Any:
        self.lists += 1
        if self.lists in self._denied:
            raise RequestError(403, "RBAC: not found")
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    async def lines(self, path: str, limit: int) -> AsyncGenerator[Mapping[str, Any]]:
        for event in self._events:
            yield event


def _watch(server: _EndsEveryWatch, on_server: Callable[[bool], None] = lambda answers: None) -> PodWatch:
    pods = [Pod(name="a", namespace="default", container="main")]
    return PodWatch(cast("Proxy", server), pods, lambda name: None, on_server)


def test_a_server_that_ends_every_watch_at_once_is_asked_once_per_second() -> None:
    async def watch() -> int:
        server = _EndsEveryWatch()
        watching = _watch(server)
        for _ in range(100):
            await asyncio.sleep(0.001)
        await watching.close()
        return server.lists

    assert asyncio.run(watch()) <= 2


@pytest.mark.parametrize(("denied", "is_refused"), [((1,), True), ((2, 3), False)])
def test_only_a_user_who_never_may_watch_is_refused(
    denied: tuple[int, ...], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_watch, "_PAUSE", 0.001)

    async def watch() -> bool:
        server = _EndsEveryWatch(denied)
        watching = _watch(server)
        await wait_until_async("the answers", lambda: watching.refusal is not None or server.lists > 4)
        await watching.close()
        return watching.refusal is not None

    assert asyncio.run(watch()) is is_refused


def test_a_watch_that_reaches_its_limit_begins_again_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watch, "_PAUSE", 0.001)
    said: list[bool] = []

    async def watch() -> None:
        server = _EndsEveryWatch(events=())
        watching = _watch(server, said.append)
        await wait_until_async("another watch", lambda: server.lists > 2)
        await watching.close()

    asyncio.run(watch())
    assert said == []


def test_another_pod_of_the_selector_is_used_in_the_same_context() -> None:
    async def others() -> list[Pod]:
        watching = _watch(_EndsEveryWatch())
        watching.pods["b"] = {
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
        }
        await watching.close()
        return watching.others(Pod(name="a", namespace="default", container="main", selector="app=x", context="prod"))

    assert [(pod.name, pod.context) for pod in asyncio.run(others())] == [("b", "prod")]
