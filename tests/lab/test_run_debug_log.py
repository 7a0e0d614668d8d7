"""What a real job leaves in its debug log, and what `--debug` shows of it."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN
from waiting import patience

pytestmark = pytest.mark.timeout(120)


def run(folder: Path, *argv: str, script: str = "print('output of a rank')") -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    env = {**PLAIN, "XDG_STATE_HOME": str(folder / "state"), "WANDB_API_KEY": "wandb-secret"}
    return subprocess.run([MUSTER, *argv], cwd=folder, env=env, capture_output=True, text=True, timeout=patience(100))


def debug_log(folder: Path) -> Path:
    (path,) = (folder / "state").glob("muster/jobs/*/debug.log")
    return path


def test_a_good_run_leaves_its_phases_requests_and_events(tmp_path: Path):
    options = ("--nproc", "2", "--no-zygote", "--env", "DATABASE=db-secret")
    done = run(tmp_path, "run", *options, "script.py", "--password=argument-secret")
    assert done.returncode == 0, done.stderr
    log = debug_log(tmp_path)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    text = log.read_text()
    steps = (
        "muster.debug_log: muster ",
        "engine local on ",
        "muster.child: started process ",
        " is up: ",
        "muster.controller: connected, after ",
        ": request 1, compare",
        ": reply 1, compare",
        "muster.controller: ready to start ranks, Plan(",
        ": started rank 0, process ",
        "attempt 0: ranks started",
        ": exit rank=",
        "muster.screen: done after ",
    )
    places = [text.find(step) for step in steps]
    assert -1 not in places, list(zip(steps, places, strict=True))
    assert places[:8] == sorted(places[:8])
    for secret in ("wandb-secret", "db-secret", "argument-secret", "output of a rank"):
        assert secret not in text
    assert "debug" not in done.stderr


def test_debug_shows_the_log_beside_the_screen(tmp_path: Path):
    done = run(tmp_path, "run", "--debug", "--nproc", "1", "--no-zygote", "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("output of a rank\n")
    shown = [line for line in done.stderr.splitlines() if line.startswith("muster: debug: ")]
    logged = [line for line in debug_log(tmp_path).read_text().splitlines() if "muster.screen:" not in line]
    assert [line.removeprefix("muster: debug: ") for line in shown] == logged
    assert done.stderr.count("done after") == 1


def test_check_shows_the_log_of_its_connections(tmp_path: Path):
    done = run(tmp_path, "check", "--debug")
    assert "muster: debug: " in done.stderr
    assert " muster.child: started process " in done.stderr
    assert not list((tmp_path / "state").glob("muster/jobs/*"))


def test_pruning_removes_the_log_with_its_job(tmp_path: Path):
    run(tmp_path, "run", "--nproc", "1", "--no-zygote", "script.py")
    assert debug_log(tmp_path).exists()
    done = run(tmp_path, "ps", "--prune", "--older", "0h")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "state").glob("muster/jobs/*"))


def test_an_import_for_ddp_is_reported_only_with_debug(tmp_path: Path):
    script = "from torch.nn.parallel import DistributedDataParallel\n"
    reason = "muster: torch._dynamo is imported before the fork because script.py uses DistributedDataParallel\n"
    try:
        done = run(tmp_path, "run", "--keep", "5m", "--nproc", "1", "script.py", script=script)
        assert (done.returncode, reason in done.stderr) == (0, False), done.stderr
        done = run(tmp_path, "run", "--nproc", "1", "--debug", "script.py", script=script)
        assert (done.returncode, reason in done.stderr) == (0, True), done.stderr
    finally:
        run(tmp_path, "keep", "--end")
