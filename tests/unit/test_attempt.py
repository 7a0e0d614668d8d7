"""What an attempt keeps of the events of its ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from muster.controller.attempt import Attempt
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.events import EventStream, Guard
from muster.controller.links.link import AgentLink
from muster.engines.engine import AgentSpec
from muster.hosts import parse_hosts
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import make_plan


def test_a_sample_that_comes_after_an_exception_does_not_take_back_what_it_counted(tmp_path: Path):
    # A sample counts the collectives that have finished, and the last one is called finished a moment late.
    def event(kind: str, **more: Any) -> dict[str, Any]:
        return {"t": kind, "rank": 0, "time": 1.0, **more}

    async def verdict() -> Verdict:
        (host,) = parse_hosts("a:1")
        plan = make_plan("j", [host], threads=[0], restarts=0, user_env={})
        screen = Screen(streams={1: None, 2: None})
        attempt = Attempt(plan, 0, tmp_path, screen, LogFiles(screen.warning), None)
        link = AgentLink(AgentSpec(host=host, name="a"), lambda link, event: None, lambda name, text: None)
        events = EventStream(Guard(screen.warning))
        attempt.subscribe(events)
        events.publish(link, event("exception", summary="ValueError: bad", message="bad", done=6))
        events.publish(link, event("progress", done=5, first=False))
        events.publish(link, event("exit", status=1, stopped_at=None, rss=0, stdin=False))
        return attempt.verdict()

    assert asyncio.run(verdict()).progress == 6
