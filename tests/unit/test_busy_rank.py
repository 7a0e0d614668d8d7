"""A rank that computes for minutes while others wait is part of the job's state."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import cast

import pytest
from hanging import elsewhere, waiting
from sample_status import make_status
from waiting import wait_until_async

from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.monitor import hang_monitor
from muster.controller.monitor.hang_monitor import HangMonitor
from muster.controller.monitor.observation import Seen
from muster.controller.monitor.rank_monitor import HeardRank, RankMonitor
from muster.engines.engine import Launch
from muster.engines.local.engine import LocalEngine
from muster.jobs.job_folders import KeptJob
from muster.jobs.ps_text import reason, status
from muster.jobs.show_text import verdict
from muster.output.screen import Screen

pytestmark = pytest.mark.timeout(100)

SAID = "rank 0 is waiting; rank 1 on a has been working for 305 s at loop.py:21, using 1.0 CPUs"


def test_ps_and_show_name_a_rank_that_computes_for_minutes_until_the_job_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    state, _ = make_status()
    out = io.StringIO()
    screen = Screen(streams={1: out, 2: out})
    launch = Launch(engine=LocalEngine(), commands=(), channel="pipes")
    agents = Agents(launch, tmp_path, on_event=lambda link, event: None, on_text=lambda host, text: None)
    monitor = RankMonitor(agents, state, screen, tmp_path, hang_after=1.0)
    monitor.heard = {rank: HeardRank("h1", has_joined=True, moved=time.time() - 305) for rank in (0, 1)}
    watch = HangMonitor(monitor, cast(Attempt, None))
    looping = elsewhere(1, at="loop.py:21", function="<module>", works=True, cpu=1.0, quiet=305.0)
    job = {0: waiting(0, quiet=305.0), 1: looping}
    look = watch._look

    async def look_at_job() -> dict[int, Seen]:
        if await look() or monitor.quiet() < 1:
            return {}
        watch._looks.append((time.monotonic(), {}))
        return job

    monkeypatch.setattr(watch, "_look", look_at_job)
    monkeypatch.setattr(hang_monitor, "_TURN", 0.01)

    def kept() -> KeptJob:
        return KeptJob(id="j", folder=tmp_path, state=state.state(), life="alive")

    async def run() -> None:
        watching = asyncio.ensure_future(watch.watch())
        await wait_until_async("the report", lambda: state.slow)
        assert status(kept(), time.time()) == "slow"
        assert reason(kept()).startswith(SAID.replace(" for 305 s", ""))  # the time of the report, not of now
        (first, *more) = verdict(kept(), time.time())
        assert SAID in first
        assert any("loop.py" in line for line in more)
        monitor.heard[1].moved = monitor.heard[0].moved = time.time()
        await wait_until_async("progress", lambda: not state.slow)
        watching.cancel()

    asyncio.run(run())
    screen.close()
    assert out.getvalue().count(SAID) == 1
    (report,) = state.reports
    assert (report.kind, report.ranks) == ("straggler", (1,))
    assert status(kept(), time.time()) == "running"
    assert not reason(kept())
