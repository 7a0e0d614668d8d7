"""A host that was taken over: whatever its messages hold, no file outside the job directory is created or changed.

The link validates every message before anybody sees it (test_protocol.py). Here nothing does, so that each part that
writes files has to be safe by itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from messages import EVENTS, REPLIES, REPORTS
from sample_status import make_status

from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.events import EventStream, Guard
from muster.controller.monitor.job_files import JobFiles
from muster.controller.monitor.observers import Observers
from muster.controller.monitor.rank_monitor import RankMonitor
from muster.controller.monitor.straggler_monitor import StragglerMonitor
from muster.engines.engine import Launch
from muster.engines.local.engine import LocalEngine
from muster.hosts import parse_hosts
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.plan import make_plan

pytestmark = pytest.mark.timeout(100)

WAY_OUT = "/../../outside/x"
HOSTILE: list[Any] = [WAY_OUT, "..", "/tmp/outside", "a\0b", "\ud800", "0\n1 1 1", -1, 1 << 70, 0.0, True, None, [], {}]


@contextmanager
def written() -> Generator[set[Path]]:
    """The paths that this process creates, opens for writing, renames or removes inside the block."""
    found: set[Path] = set()
    is_on = True

    def note(event: str, given: tuple[Any, ...]) -> None:
        if not is_on:
            return
        path: Any = None
        if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            path = given[0]
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink"):
            path = given[0] if event != "os.rename" else given[1]
        if isinstance(path, (str, bytes)) and os.fsdecode(path) != os.devnull:
            found.add(Path(os.path.abspath(os.fsdecode(path))))

    sys.addaudithook(note)  # stays until the process ends
    try:
        yield found
    finally:
        is_on = False


def with_each_field_replaced(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield sample
    for name in {*sample, "rank", "stream"} - {"t"}:
        yield from ({**sample, name: value} for value in HOSTILE)


def test_no_message_of_a_host_writes_outside_the_job_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job = tmp_path / "job"
    job.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(job))  # for Muster's own log of internal errors
    screen = Screen(streams={1: None, 2: None})
    logs = LogFiles(screen.warning)
    status, link = make_status()

    async def hear_everything() -> None:
        launch = Launch(engine=LocalEngine(), commands=(), channel="pipes")
        agents = Agents(launch, job, on_event=lambda link, event: None, on_text=lambda host, text: None)
        monitor = RankMonitor(agents, status, screen, job)
        events = EventStream(Guard(screen.warning))
        Observers(status, JobFiles(status, job, logs), monitor, StragglerMonitor(status, screen), events)
        plan = make_plan("j", parse_hosts("a:2"), threads=[0], restarts=0, user_env={})
        Attempt(plan, 0, job, screen, logs, None).subscribe(events)
        for kind, sample in {**EVENTS, **REPORTS}.items():
            for message in with_each_field_replaced({"rank": 0, "time": 1.0, **sample, "t": kind}):
                with suppress(Exception):  # the link would be lost
                    events.publish(link, message)
        for view in with_each_field_replaced(REPLIES["stacks"]["ranks"]["0"]):
            with suppress(Exception):
                monitor.write_stacks({0: {**view, "host": WAY_OUT}})  # type: ignore[typeddict-item]
        events.publish(link, {"t": "out", "rank": 1, "stream": 1, "text": "still here\n"})

    with written() as found:
        asyncio.run(hear_everything())
        logs.close()
        screen.close()
    assert not {path for path in found if not path.is_relative_to(job)}
    assert (job / "attempt-0" / "rank-1.log").read_text().endswith("still here\n")
    assert {path.name for path in (job / "attempt-0").iterdir()} == {"rank-0.log", "rank-1.log", "order"}
    order = [line.split() for line in (job / "attempt-0" / "order").read_text().splitlines()]
    assert {(rank, stream) for rank, stream, *_ in order} <= {("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")}


def test_stack_traces_with_text_that_is_no_unicode_are_written(tmp_path: Path):
    screen = Screen(streams={1: None, 2: None})
    launch = Launch(engine=LocalEngine(), commands=(), channel="pipes")
    agents = Agents(launch, tmp_path, on_event=lambda link, event: None, on_text=lambda host, text: None)
    monitor = RankMonitor(agents, make_status()[0], screen, tmp_path)
    view: Any = {**REPLIES["stacks"]["ranks"]["0"], "host": "a", "children": []}
    view["stack"] = 'Thread 0x1 (most recent call first):\n  File "\ud800.py", line 1 in f\n'
    assert b"ud800" in monitor.write_stacks({0: view}).read_bytes()


@pytest.mark.parametrize("name", ["rank-\0.log", "rank-0.log"])
def test_a_log_that_cannot_be_a_file_of_the_job_is_reported_and_the_others_are_written(tmp_path: Path, name: str):
    precious, good, warnings = tmp_path / "precious", tmp_path / "job" / "rank-1.log", list[str]()
    good.parent.mkdir()
    (good.parent / "rank-0.log").symlink_to(precious)
    logs = LogFiles(warnings.append)
    logs.write(good.parent / name, "x\n")
    logs.write(good, "y\n")
    logs.close()
    assert len(warnings) == 1
    assert not precious.exists()
    assert good.read_text() == "y\n"
