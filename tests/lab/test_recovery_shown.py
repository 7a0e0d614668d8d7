"""What a user sees of a job that loses a host to a spare, and gets it back: screen, ps, show, top and metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import HostJob, run_in
from waiting import wait_until

from muster.dashboard.prometheus import metrics
from muster.jobs.state import JobState, from_data
from muster.lab import Lab

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
while True:
    done = torch.tensor(float(os.path.exists("done")))
    dist.all_reduce(done)
    if done:
        break
    time.sleep(0.05)
"""


@pytest.fixture
def job(cluster: Lab, shared: Path) -> Iterator[HostJob]:
    (shared / "until.py").write_text(SCRIPT)
    options = ("--spares", "1", "--restarts", "3", "--lost-after", "4s", "--grace", "1")
    made = HostJob(cluster, "h1", shared, *options, "-H", "h3:1,h2:1,h1:1", "until.py")
    yield made
    made.end()


def test_a_spare_that_takes_over_and_a_host_that_returns_are_seen_everywhere(
    cluster: Lab, shared: Path, job: HostJob
) -> None:
    def muster(command: str, *argv: str) -> str:
        return run_in(cluster, "h1", shared, *argv, command=command, XDG_STATE_HOME=str(job.state), COLUMNS="200").out

    def until(what: str, attempt: int, hosts: dict[str, tuple[str, str]]) -> JobState:
        def fitting(found: list[dict[str, Any]]) -> JobState | None:
            known = from_data(found[0]) if found and found[0].get("command") else None
            if known is None or known.phase != "running" or known.attempt != attempt or not known.ranks[0].collectives:
                return None
            return known if {host.name: (host.state, host.role) for host in known.hosts} == hosts else None

        def reached() -> JobState | None:
            # A command for each look would be expensive, so the file is read until it is as expected.
            files = job.state.glob("muster/jobs/*/state.json")
            if not fitting([json.loads(file.read_text()) for file in files]):
                return None
            return fitting(json.loads(muster("ps", "--json") or "[]"))

        return wait_until(what, reached, 120, lambda: f"{muster('show')}\n{job.err}")

    until("the first attempt", 0, {"h3": ("up", "ranks"), "h2": ("up", "ranks"), "h1": ("up", "spare")})
    assert "  2@h3,h2 + 1 spare  " in muster("ps")
    assert "muster: 2 ranks on 2 hosts + 1 spare, rendezvous at " in job.err
    cluster.cut("h3")
    try:
        known = until("the spare", 1, {"h3": ("lost", ""), "h2": ("up", "ranks"), "h1": ("up", "ranks")})
        assert "  2@h1,h2, 1 lost (h3)  " in muster("ps")
        assert re.search(r"^h3 +- +lost .* no message", muster("top", "--once"), re.MULTILINE)
        text = metrics(known)
        assert re.search(r'^muster_hosts\{.*state="lost"\} 1$', text, re.MULTILINE)
        assert re.search(r"^muster_host_losses_total\{.*\} 1$", text, re.MULTILINE)
        assert re.search(r"^muster_attempts_total\{.*\} 2$", text, re.MULTILINE)
    finally:
        cluster.heal("h3")
    until("its return", 1, {"h3": ("up", "spare"), "h2": ("up", "ranks"), "h1": ("up", "ranks")})
    assert "  2@h1,h2 + 1 spare  " in muster("ps")
    (shared / "done").touch()
    done = job.wait(100)
    assert done.code == 0, done.said
    shown = muster("show")
    for said, label, begin, hosts in ((done.err, "muster: ", "", ""), (shown, "", r"[\d:]{8}  ", "h[13],h2  +")):
        row = rf"  +{begin}[\d.]+ s  +2  +{hosts}"
        assert re.search(rf"^{label}  0{row}[\d.]+ s, h1 replaced h3  +lost h3: no message", said, re.MULTILINE), said
        assert re.search(rf"^{label}  1{row}-  +exit code 0$", said, re.MULTILINE), said
    assert re.search(r"^  [\d:]{8}  h3 is back$", shown, re.MULTILINE), shown
