"""What an attempt keeps of the events of its ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.controller.attempt import Attempt
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.events import EventStream, Guard
from muster.controller.links.link import AgentLink
from muster.engines.engine import AgentSpec
from muster.hosts import parse_hosts
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import make_plan
from muster.shared.wire import ProtocolError


def attempt_of_one_rank(folder: Path) -> tuple[Attempt, EventStream, AgentLink]:
    (host,) = parse_hosts("a:1")
    plan = make_plan("j", [host], threads=[0], restarts=0, user_env={})
    screen = Screen(streams={1: None, 2: None})
    attempt = Attempt(plan, 0, folder, screen, LogFiles(screen.warning), None)
    link = AgentLink(AgentSpec(host=host, name="a"), lambda link, event: None, lambda name, text: None)
    events = EventStream(Guard(screen.warning))
    attempt.subscribe(events)
    return attempt, events, link


def test_a_sample_that_comes_after_an_exception_does_not_take_back_what_it_counted(tmp_path: Path):
    # A sample counts the collectives that have finished, and the last one is called finished a moment late.
    def event(kind: str, **more: Any) -> dict[str, Any]:
        return {"t": kind, "rank": 0, "time": 1.0, **more}

    async def verdict() -> Verdict:
        attempt, events, link = attempt_of_one_rank(tmp_path)
        events.publish(link, event("exception", summary="ValueError: bad", message="bad", done=6))
        events.publish(link, event("progress", done=5, first=False))
        events.publish(link, event("exit", status=1, stopped_at=None, rss=0, stdin=False))
        return attempt.verdict()

    assert asyncio.run(verdict()).progress == 6


def test_a_host_cannot_fill_the_memory_of_muster_run_or_choose_an_exit_code_that_no_process_has(tmp_path: Path):
    async def hear() -> None:
        attempt, events, link = attempt_of_one_rank(tmp_path)
        for _ in range(100):
            events.publish(link, {"t": "piece", "rank": 0, "time": 1.0, "piece": "AAAA" * 1000})
            events.publish(link, {"t": "out", "rank": 0, "stream": 2, "text": "x" * 100_000 + "\n"})
        assert attempt._ranks[0].pieces == []
        assert sum(map(len, attempt._ranks[0].last_words)) <= 1_000_000
        end: dict[str, Any] = {"t": "exit", "rank": 0, "time": 1.0, "stopped_at": None, "rss": 0, "stdin": False}
        for status in (1 << 62, 256, -(1 << 62)):  # the exit code of `muster run` would be 0
            with pytest.raises(ProtocolError, match="neither an exit code nor minus a signal"):
                events.publish(link, {**end, "status": status})

    asyncio.run(hear())
