"""An observer of a job cannot end it."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from sample_status import make_status

from muster.controller.agents import Agents
from muster.controller.events import EventStream, Guard
from muster.controller.monitor.job_files import JobFiles
from muster.controller.monitor.job_status import JobStatus
from muster.controller.monitor.observers import Observers
from muster.controller.monitor.rank_monitor import HeardRank, RankMonitor
from muster.controller.monitor.straggler_monitor import StragglerMonitor
from muster.engines.engine import Launch
from muster.engines.local.engine import LocalEngine
from muster.output.log_files import LogFiles
from muster.output.screen import Screen

pytestmark = pytest.mark.timeout(100)

UNKNOWN_TO_THE_BOARD: dict[str, Any] = {"t": "gauges"}
WELL: dict[str, Any] = {"t": "progress", "rank": 1, "time": 1.0, "moved": 1.0, "done": 7, "groups": {"0": [3, 2]}}


def watcher_of(status: JobStatus, screen: Screen, folder: Path) -> RankMonitor:
    """A monitor of a job whose hosts are all gone."""
    launch = Launch(engine=LocalEngine(), commands=(), channel="pipes")
    agents = Agents(launch, folder, on_event=lambda link, event: None, on_text=lambda host, text: None)
    return RankMonitor(agents, status, screen, folder)


def test_an_error_of_an_observer_is_reported_once_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    out = io.StringIO()
    screen = Screen(streams={1: out, 2: out})
    logs = LogFiles(screen.warning)
    status, link = make_status()
    monitor = watcher_of(status, screen, tmp_path)
    events = EventStream(Guard(screen.warning))
    observers = Observers(status, JobFiles(status, tmp_path, logs), monitor, StragglerMonitor(status, screen), events)

    def no_words() -> str:
        raise LookupError("nothing is waited for")

    events.publish(link, UNKNOWN_TO_THE_BOARD)
    events.publish(link, UNKNOWN_TO_THE_BOARD)
    observers.tick([link], no_words)
    events.publish(link, WELL)
    observers.finish()
    logs.close()
    screen.close()
    assert status.state().ranks[1].collectives == 7
    assert monitor.heard[1].groups == WELL["groups"]
    assert (tmp_path / "state.json").exists()
    (said,) = out.getvalue().splitlines()
    what = "what `muster ps`, `top` and the dashboard show of this job may be wrong from now on; the job keeps running"
    assert said.startswith(f"muster: {what}: internal error in Muster: KeyError: 'host' (job_status.py:")
    assert said.endswith(f"); please report it with {tmp_path}/muster/debug.log")
    assert ", in _on_gauges\n" in (tmp_path / "muster" / "debug.log").read_text()


@pytest.mark.parametrize("can_be_written", [True, False])
def test_while_it_is_looked_where_the_ranks_are_no_second_look_is_wanted(
    tmp_path: Path, can_be_written: bool, monkeypatch: pytest.MonkeyPatch
):
    """So that the second Ctrl-C ends the job at once."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    out = io.StringIO()
    screen = Screen(streams={1: out, 2: out})
    status, _ = make_status()
    monitor = watcher_of(status, screen, tmp_path)
    monitor.heard = {0: HeardRank("h1", has_joined=True, joining=True)}
    if not can_be_written:
        del monitor.folder
    wanted = [monitor.seems_stuck]

    async def look() -> None:
        done = asyncio.Event()
        monitor.stacks_then(done.set)
        wanted.append(monitor.seems_stuck)
        await asyncio.wait_for(done.wait(), 30)

    asyncio.run(look())
    screen.close()
    assert wanted == [True, False]
    failure = "could not save stack traces: internal error in Muster: AttributeError"
    assert ("stack traces of 0 ranks: " if can_be_written else failure) in out.getvalue()
