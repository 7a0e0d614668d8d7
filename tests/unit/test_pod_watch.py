"""Watching pods through an API server that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from muster.engines.kubernetes.pod_watch import PodWatch
from muster.engines.kubernetes.pods import Pod
from muster.engines.kubernetes.proxy import Proxy


class _EndsEveryWatch:
    def __init__(self) -> None:
        self.lists = 0

    async def get(self, path: str) -> Any:
        self.lists += 1
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    async def lines(self, path: str) -> AsyncGenerator[Mapping[str, Any]]:
        for event in ({"type": "ERROR"},):
            yield event


def test_a_server_that_ends_every_watch_at_once_is_asked_once_per_second() -> None:
    async def watch() -> int:
        server = _EndsEveryWatch()
        pods = [Pod(name="a", namespace="default", container="main")]
        watching = PodWatch(cast("Proxy", server), pods, lambda name: None, lambda answers: None)
        for _ in range(100):
            await asyncio.sleep(0.001)
        await watching.close()
        return server.lists

    assert asyncio.run(watch()) <= 2
