"""How far the clock of a host is off, from the pings to its agent."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from messages import UP

from muster.controller.links.link import AgentLink
from muster.engines.engine import AgentSpec
from muster.hosts import Host
from muster.shared.wire import GREETING, encode

# Round trips of many seconds, so that delays of a busy machine do not affect the result.


def pong(offset: float, *, way: float) -> dict[str, Any]:
    """The answer to a ping that took `way` seconds there and back, from a clock that is off."""
    now = time.time()
    return {"t": "pong", "sent": now - way, "time": now - way / 2 + offset, "got": 0}


def offsets_after(*answers: tuple[float, float]) -> list[float]:
    """The offset that is believed after each answer, given as the clock's real offset and the way."""

    async def listen() -> list[float]:
        link = AgentLink(AgentSpec(host=Host(name="b"), name="b"), lambda *_: None, lambda *_: None)
        link.on_data(GREETING + encode(UP))
        believed: list[float] = []
        for offset, way in answers:
            link.on_data(encode(pong(offset, way=way)))
            believed.append(link.clock_offset)
        return believed

    return asyncio.run(listen())


def test_the_shortest_round_trip_gives_the_best_clock():
    short, long = offsets_after((3000.0, 10), (7000.0, 500))
    assert abs(short - 3000.0) < 100
    assert long == short


def test_a_clock_that_jumps_is_believed_again_within_a_minute():
    offsets = offsets_after((0.0, 10), *[(3000.0, 20)] * 120)  # a ping each half second, on ways twice as long
    assert abs(offsets[1]) < 100
    assert abs(offsets[-1] - 3000.0) < 100
