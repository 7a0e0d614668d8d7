"""Requeue: which job continues, when it does, and what its ranks get."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.controller.attempt import Attempt
from muster.controller.diagnosis.rank_end import HostLoss, RankEnd
from muster.controller.diagnosis.verdict import Verdict, judge
from muster.controller.requeue_watch import RequeueWatch, is_failure
from muster.engines.pbs import pbs_requeue
from muster.engines.pbs.pbs_requeue import PbsRequeue
from muster.engines.requeue import tracking_env
from muster.engines.slurm import slurm_requeue
from muster.engines.slurm.slurm_requeue import SlurmRequeue
from muster.errors import MusterError, UsageError
from muster.hosts import parse_hosts
from muster.job import make_job_folder
from muster.jobs.requeue_marks import find_earlier, leave_mark
from muster.output.screen import Screen
from muster.plan import make_plan

JOB = "20261116-135130-train-a697"
BATCH = {"SLURM_JOB_ID": "4711", "SLURM_CLUSTER_NAME": "lab", "MUSTER_REQUEUE": "2", "MUSTER_SIGNAL": "120"}
PEER_GONE = "RuntimeError: Connection closed by peer [10.77.0.2]:43871"


def slurm(**more: str) -> SlurmRequeue:
    found = slurm_requeue.read_requeue({**BATCH, **more})
    assert found is not None
    return found


def pbs(folder: Path, **more: str) -> PbsRequeue:
    found = pbs_requeue.read_requeue({"PBS_JOBID": "12.srv", "PBS_JOBNAME": "train", "MUSTER_REQUEUE": "2", **more})
    assert found is not None
    return replace(found, script=folder / found.script.name)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


# --- which job it is ------------------------------------------------------------------------------------------


def test_a_requeued_slurm_job_is_the_same_job_with_the_next_attempt():
    assert find_earlier(slurm()) is None
    folder = make_job_folder(JOB)
    for number in range(3):
        (folder / f"attempt-{number}").mkdir()
    leave_mark(folder, slurm().mark, 0)
    earlier = find_earlier(slurm(SLURM_RESTART_COUNT="1"))
    assert earlier is not None
    assert (earlier.job_id, earlier.requeues, earlier.next_attempt) == (JOB, 1, 3)


@pytest.mark.parametrize("other", [{"SLURM_JOB_ID": "4712"}, {"SLURM_CLUSTER_NAME": "big"}, {}])
def test_another_job_of_the_scheduler_is_another_job(other: dict[str, str]):
    leave_mark(make_job_folder(JOB), slurm().mark, 0)
    count = {"SLURM_RESTART_COUNT": "1"} if other else {}  # a job that was not requeued begins, whatever is there
    assert find_earlier(slurm(**other, **count)) is None


def test_pbs_does_not_count_so_the_job_directory_does(tmp_path: Path):
    folder = make_job_folder(JOB)
    leave_mark(folder, pbs(tmp_path).mark, 1)
    earlier = find_earlier(pbs(tmp_path))
    assert earlier is not None
    assert earlier.requeues == 2
    (folder / pbs(tmp_path).mark).write_text("many")
    earlier = find_earlier(pbs(tmp_path))
    assert earlier is not None
    assert earlier.requeues == 1


def test_a_job_of_an_array_is_requeued_alone():
    assert slurm(SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3").job == "4700_3"
    assert slurm(SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3").mark == "slurm-lab-4711"


def test_without_the_settings_of_the_batch_script_nothing_is_requeued():
    assert slurm_requeue.read_requeue({"SLURM_JOB_ID": "1"}) is None
    assert pbs_requeue.read_requeue({"PBS_JOBID": "1.srv"}) is None
    with pytest.raises(UsageError, match="not numbers: MUSTER_REQUEUE=often"):
        slurm(MUSTER_REQUEUE="often")


# --- whether it is requeued -----------------------------------------------------------------------------------


def end(rank: int, status: int = 0, **more: Any) -> RankEnd:
    return RankEnd(rank=rank, host=f"h{rank + 1}", status=status, time=10.0, **more)


@pytest.mark.parametrize(
    ("how", "failed"),
    [
        (end(0), False),
        (end(0, 3, summary="3"), False),
        (end(0, -signal.SIGUSR1), False),
        (end(0, -signal.SIGTERM), False),
        (end(0, -signal.SIGKILL, stopped=True), False),
        (end(0, 1, summary=PEER_GONE, message=PEER_GONE, traceback="Traceback"), False),
        (end(0, 1, summary="ValueError: x", message="x", traceback="Traceback"), True),
        (end(0, -signal.SIGSEGV), True),
        (end(0, -signal.SIGKILL), True),
    ],
    ids=["0", "a code", "no handler", "SIGTERM", "stopped", "lost its peer", "exception", "crash", "killed"],
)
def test_after_the_warning_only_exceptions_and_crashes_are_failures(how: RankEnd, failed: bool):
    assert is_failure(how) is failed


def settled(ends: list[RankEnd], *, warned: bool, requeue: SlurmRequeue, losses: list[HostLoss], reason: str | None):
    async def decide() -> tuple[bool, Verdict]:
        status = SimpleNamespace(job=SimpleNamespace(spec=SimpleNamespace(grace=5.0)), attempt_lost=lambda why: None)
        watch = RequeueWatch(requeue, Path("/nowhere"), Screen(streams={1: None, 2: None}), cast("Any", status))
        if warned:
            assert "they have 105 s to save and exit" in watch.on_signal(signal.SIGUSR1, None, lambda: None)
        attempt = cast("Attempt", SimpleNamespace(ends=ends, drained=None))
        verdict = watch.settle(judge(ends, losses, start=0.0), attempt, reason)
        return watch.is_decided, verdict

    return asyncio.run(decide())


@pytest.mark.parametrize(
    ("ends", "warned", "losses", "reason", "again"),
    [
        ([end(0), end(1)], False, [], None, False),
        ([end(0), end(1)], True, [], None, True),
        ([end(0, 1, summary="1"), end(1, 1, summary=PEER_GONE, message=PEER_GONE)], True, [], None, True),
        ([end(0, 1, message="x", traceback="t"), end(1, -15, stopped=True)], True, [], None, False),
        ([end(0, 1, message="x", traceback="t"), end(1, -15, stopped=True)], False, [], None, False),
        ([end(0, -15, stopped=True)], False, [HostLoss(host="h2", why="gone", time=9.0)], None, True),
        ([end(0, -15), end(1, -15)], False, [], "Slurm ended job 1: it reached its time limit", True),
        ([end(0, -15), end(1, -15)], False, [], "Slurm ended job 1: it was canceled (scancel)", False),
    ],
    ids=["done", "saved", "exited", "failed", "failed before", "host lost", "time limit", "scancel"],
)
def test_what_is_requeued(ends: list[RankEnd], warned: bool, losses: list[HostLoss], reason: str | None, again: bool):
    decided, verdict = settled(ends, warned=warned, requeue=slurm(), losses=losses, reason=reason)
    assert decided is again
    if again:
        assert verdict.sentence.endswith("requeueing Slurm job 4711 (1 of 2)")


def test_a_job_is_requeued_only_so_often():
    requeue = slurm(SLURM_RESTART_COUNT="2")
    decided, verdict = settled([end(0)], warned=True, requeue=requeue, losses=[], reason=None)
    assert not decided
    assert verdict.exit_code == 125
    assert verdict.notes == ("Slurm job 4711 is not requeued, because it has been requeued 2 times",)


# --- how it is requeued ---------------------------------------------------------------------------------------


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_where_qrerun_is_forbidden_the_script_is_submitted_again(tmp_path: Path):
    (tmp_path / "train-12.pbs").write_text("#PBS -N train\n")
    job = replace(
        pbs(tmp_path),
        qrerun=program(tmp_path, "qrerun", 'echo "qrerun: Unauthorized Request $1" >&2; exit 159'),
        qsub=program(tmp_path, "qsub", f'echo "$@" > {tmp_path}/asked; echo 13.srv'),
    )
    assert job.again() == "pbs-13.srv"
    assert (tmp_path / "asked").read_text() == f"-W depend=afterany:12.srv {tmp_path}/train-12.pbs\n"
    assert (tmp_path / "train-13.pbs").read_text() == "#PBS -N train\n"


def test_a_script_that_is_gone_cannot_be_submitted_again(tmp_path: Path):
    job = replace(pbs(tmp_path), qrerun=program(tmp_path, "qrerun", "echo no >&2; exit 1"))
    with pytest.raises(
        MusterError, match=r"failed: no; .*train-12.pbs, the batch script to submit again, does not exi"
    ):
        job.again()


def test_an_operator_of_pbs_uses_qrerun(tmp_path: Path):
    assert replace(pbs(tmp_path), qrerun=program(tmp_path, "qrerun", "exit 0")).again() is None


# --- what its ranks get ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "rank", "found"),
    [
        ({}, 0, {}),
        ({"MUSTER_REQUEUE": "2", "MLFLOW_RUN_ID": "x"}, 0, {"WANDB_RUN_ID": JOB, "WANDB_RESUME": "allow"}),
        ({"MUSTER_REQUEUE": "2", "MLFLOW_RUN_ID": "x"}, 1, {"WANDB_RUN_ID": f"{JOB}-1", "WANDB_RESUME": "allow"}),
        ({"MUSTER_REQUEUE": "2", "WANDB_RUN_ID": "mine", "WANDB_RESUME": "must", "MLFLOW_RUN_ID": "x"}, 0, {}),
    ],
    ids=["not requeued", "rank 0", "rank 1", "set by the user"],
)
def test_the_run_of_weights_and_biases_continues(env: Mapping[str, str], rank: int, found: Mapping[str, str]):
    plan = make_plan(JOB, parse_hosts("a:2"), threads=[0], restarts=0, user_env={})
    assert tracking_env(plan, rank, env) == found


def test_the_run_of_mlflow_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_job_folder(JOB)
    plan = make_plan(JOB, parse_hosts("a:1"), threads=[0], restarts=0, user_env={})
    package = tmp_path / "mlflow" / "tracking"
    package.mkdir(parents=True)
    (tmp_path / "mlflow" / "__init__.py").write_text("from mlflow.tracking.fluent import start_run\n")
    (package / "__init__.py").touch()
    (package / "fluent.py").write_text(
        "import itertools, types\nids = itertools.count(1)\n"
        "def start_run(**options):\n"
        "    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f'run{next(ids)}'))\n"
    )
    first = tracking_env(plan, 0, {"MUSTER_REQUEUE": "2"})
    assert "MLFLOW_RUN_ID" not in first
    script = "import mlflow; mlflow.start_run(); mlflow.start_run(nested=True)"
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; from muster.rank.mlflow_run import install; install()"
    subprocess.run([sys.executable, "-c", f"{code}; {script}"], env={**os.environ, **first}, check=True, timeout=60)
    assert tracking_env(plan, 0, {"MUSTER_REQUEUE": "2"})["MLFLOW_RUN_ID"] == "run1"
