"""`muster.run`: what `muster run` does, called from Python."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from launching import PLAIN
from waiting import patience

import muster

QUICK: dict[str, Any] = {"zygote": False, "check": False, "quiet": True}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def script(text: str, name: str = "train.py") -> str:
    Path(name).write_text(textwrap.dedent(text))
    return name


def test_a_script_that_ends_well_is_an_outcome_with_its_logs():
    outcome = muster.run(
        script("import os, sys; print(os.environ['RANK'], sys.argv[1:])"), ["--lr", 1], nproc=2, **QUICK
    )
    assert (outcome.ok, outcome.exit_code, outcome.message, outcome.rank) == (True, 0, "", None)
    assert [outcome.log(rank).read_text() for rank in (0, 1)] == ["0 ['--lr', '1']\n", "1 ['--lr', '1']\n"]
    assert outcome.folder.name == outcome.job_id


def test_a_script_that_fails_is_an_outcome_that_names_the_rank_and_why():
    name = script(
        "import os\nif os.environ['RANK'] == '1': raise ValueError('no such data')\nimport time; time.sleep(60)"
    )
    outcome = muster.run(name, nproc=2, **QUICK)
    assert (outcome.ok, outcome.exit_code, outcome.rank) == (False, 1, 1)
    assert "ValueError: no such data" in outcome.message
    assert "line 2" in outcome.traceback


def test_a_spec_may_be_given_and_changed():
    spec = muster.RunSpec(target=script("import os; print(os.environ['A'])"), nproc=1, env={"A": "1"}, check=False)
    outcome = muster.run(spec, env={"A": 2}, zygote=False, quiet=True)
    assert outcome.log(0).read_text() == "2\n"


def test_a_module_runs_as_python_m_does():
    assert muster.run("json.tool", ["--help"], kind="module", nproc=1, **QUICK).ok


def test_restarts_are_counted_and_the_log_is_that_of_the_last():
    name = script("import os, sys; n = os.environ['TORCHELASTIC_RESTART_COUNT']; print(n); sys.exit(n == '0')")
    outcome = muster.run(name, nproc=1, restarts=1, **QUICK)
    assert (outcome.ok, outcome.attempts, outcome.log(0).read_text()) == (True, 2, "1\n")


def test_it_may_be_called_from_any_thread():
    name, outcomes = script("pass"), list[muster.Outcome]()
    thread = threading.Thread(target=lambda: outcomes.append(muster.run(name, nproc=1, **QUICK)))
    thread.start()
    thread.join(60)
    assert [outcome.ok for outcome in outcomes] == [True]


def test_a_timeout_ends_the_job():
    with pytest.raises(TimeoutError, match=r"train\.py did not end on every rank within 0\.7 s"):
        muster.run(script("import time; time.sleep(600)"), nproc=1, timeout=0.7, **QUICK)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nprocs": 2}, "unknown option nprocs"),
        ({"nproc": 0}, "nproc must be at least 1, got 0"),
        ({"on_hang": "wait"}, "on_hang must be 'report' or 'kill', got 'wait'"),
        ({"hosts": ["a:x"]}, "a:x"),
        ({"engine": "slrum"}, "slrum"),
        ({"timeout": -1}, "timeout must be above 0, got -1"),
        ({"kind": "module", "container": "podman"}, "--container needs --image"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_options_are_refused_before_anything_starts(options: dict[str, Any], sentence: str, folder: Path):
    with pytest.raises(muster.MusterError) as caught:
        muster.run(script("pass"), **options)
    assert sentence in caught.value.message
    assert f"hint: {caught.value.hint}" in str(caught.value)
    assert not (folder / "state").exists()


def test_a_script_that_is_not_there_is_named():
    script("pass", "trian.py")
    with pytest.raises(muster.UsageError, match=r"script train\.py not found"):
        muster.run("train.py", nproc=1)


def test_the_output_is_where_this_process_prints(folder: Path):
    script("print('from a rank')")
    caller = (
        "import muster; print('before'); muster.run('train.py', nproc=1, zygote=False, check=False); print('after')"
    )
    done = subprocess.run(
        [sys.executable, "-c", caller],
        cwd=folder,
        env={**PLAIN, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=patience(100),
    )
    assert [line.rpartition("] ")[2] for line in done.stdout.splitlines()] == ["before", "from a rank", "after"]
