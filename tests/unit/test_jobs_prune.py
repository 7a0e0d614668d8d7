"""`muster ps --prune`: what is removed, and what never is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kept_jobs import keep, state_of

from muster.jobs.job_folders import job_folders
from muster.jobs.prune import prune

DAY = 86400.0
OLD = {"now": time.time() - 40 * DAY}


@pytest.fixture(autouse=True)
def _state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def job_id(name: str) -> str:
    return f"20261001-080000-{name}-aaaa"


def test_only_jobs_that_ended_long_ago_are_removed_and_their_size_is_reported():
    old = keep(state_of(job_id("old"), phase="ended", exit_code=0, **OLD))
    (old / "attempt-0").mkdir()
    (old / "attempt-0" / "rank-0.log").write_text("x" * 1000)
    keep(state_of(job_id("died"), controller_birth="00000000-1", **OLD))
    keep(state_of(job_id("running"), **OLD))
    keep(state_of(job_id("elsewhere"), host="gpu01", controller_birth="x", **OLD))
    keep(state_of(job_id("new"), phase="ended", exit_code=0))
    done = prune(30 * DAY)
    assert set(done.removed) == {job_id("old"), job_id("died")}
    assert done.size > 1000
    assert {folder.name for folder in job_folders()} == {job_id("running"), job_id("elsewhere"), job_id("new")}


def test_a_folder_in_which_ranks_worked_is_kept_and_named():
    folder = keep(state_of(job_id("synced"), phase="ended", exit_code=0, **OLD))
    (folder / "code").mkdir()
    (folder / "code" / "checkpoint.pt").write_text("hours of work")
    done = prune(30 * DAY)
    assert (done.removed, done.with_code) == ((), (folder,))
    assert (folder / "code" / "checkpoint.pt").exists()


def test_code_that_was_not_unpacked_to_its_end_is_removed():
    folder = keep(state_of(job_id("cut"), phase="ended", exit_code=0, **OLD))
    (folder / "code.h1.4711").mkdir()
    (folder / "code.h1.4711" / "train.py").write_text("half of")
    assert prune(30 * DAY).removed == (job_id("cut"),)
    assert not folder.exists()


def test_a_link_to_a_folder_elsewhere_is_not_followed(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("x")
    keep(state_of(job_id("old"), phase="ended", exit_code=0, **OLD))
    (tmp_path / "muster" / "jobs" / job_id("link")).symlink_to(mine)
    assert prune(0.0).removed == (job_id("old"),)
    assert (mine / "precious").exists()
