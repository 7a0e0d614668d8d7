"""A job whose observers fail: what shows and measures it fails, and the job runs to its end all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN
from waiting import patience

pytestmark = pytest.mark.timeout(120)

LONG = 7.0
"""Seconds: longer than the lease of an agent that hears no heartbeat."""

SICK_BOARD = """
import sys
from muster.cli import main
from muster.controller.{module} import {name}
def fail(self, *_): raise LookupError("sick")
{name}.{function} = fail
sys.exit(main(["run", "--nproc", "1", "--no-zygote", "--no-check", "script.py"]))
"""

SICK_DASHBOARD = """
import errno, os, sys
from muster.cli import main
from muster.dashboard import dashboard_process as child
def start(*_): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
child.start = start
sys.exit(main({argv}))
"""


def run(folder: Path, *argv: str, seconds: float = LONG) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(f"import time; time.sleep({seconds}); print('all of it')")
    env = {**PLAIN, "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=patience(100))


def debug_log(folder: Path) -> Path:
    (path,) = (folder / "state").glob("muster/jobs/*/debug.log")
    return path


def test_a_job_whose_board_fails_keeps_its_heartbeat_and_ends_well(tmp_path: Path):
    code = SICK_BOARD.format(module="monitor.job_status", name="JobStatus", function="tick")
    done = run(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert "all of it" in done.stdout
    assert done.stderr.count("LookupError: sick") == 1
    assert "the job keeps running" in done.stderr
    log = debug_log(tmp_path)
    assert f"please report it with {log}" in done.stderr
    assert "ERROR muster.debug_log: internal error: LookupError: sick" in log.read_text()
    assert ", in fail\n" in log.read_text()


def test_a_heartbeat_that_fails_ends_the_job_with_its_own_error(tmp_path: Path):
    code = SICK_BOARD.format(module="agents", name="Agents", function="beat")
    done = run(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 125
    assert "error: internal error in Muster: LookupError: sick (<string>:5); please report it with " in done.stderr
    assert "Traceback" not in done.stderr
    assert ", in tick\n" in debug_log(tmp_path).read_text()
    assert "is lost" not in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can cover a file of /proc")
def test_a_host_that_hides_what_it_uses_runs_its_ranks_all_the_same(tmp_path: Path):
    hide = f"mount --bind /dev/null /proc/meminfo && exec {MUSTER} run --nproc 1 --no-zygote --no-check script.py"
    done = run(tmp_path, "unshare", "--mount", "sh", "-c", hide)
    assert done.returncode == 0, done.stderr
    assert "all of it" in done.stdout
    assert (
        done.stderr.count(
            "could not determine the resource usage of the host (KeyError: b'MemTotal'); the job continues"
        )
        == 1
    )
    log = debug_log(tmp_path).read_text()
    assert ": unseen what=the resource usage of the host why=KeyError: b'MemTotal'\nTraceback " in log
    assert "host_metrics.py" in log


def test_a_dashboard_that_cannot_be_started_is_reported_and_the_job_runs_without_it(tmp_path: Path):
    code = SICK_DASHBOARD.format(argv=["run", "--dashboard", "--nproc", "1", "--no-zygote", "--no-check", "script.py"])
    done = run(tmp_path, sys.executable, "-c", code, seconds=0)
    assert done.returncode == 0, done.stderr
    assert "all of it" in done.stdout
    assert (
        "could not start the dashboard (Resource temporarily unavailable); the job continues without it" in done.stderr
    )
