"""`muster run` as the command of every pod of a Kubernetes Job; lab hosts with a pod's variables stand for pods."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, Done, HostJob
from waiting import ending, patience, wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

SCRIPT = """\
import os, pathlib, signal, sys, time

rank, how, flag = int(os.environ["RANK"]), sys.argv[1], pathlib.Path(sys.argv[2])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def save(*_):
    print("SAVED", rank, flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, "attempt", attempt, flush=True)
if how == "fail" and rank == 1:
    sys.exit(7)
while how == "wait" and not flag.exists():
    time.sleep(0.05)
"""

TOKEN = "0123456789abcdef" * 4


class Pods:
    """The pods of one Job: pod 0 on h1, pod 1 on h2 and so on."""

    def __init__(self, lab: Lab, folder: Path, *argv: str, pods: int = 2, **env: str) -> None:
        self._lab = lab
        self._folder = folder
        self._argv = ("--no-zygote", "--no-check", *argv)
        self._pods = pods
        self._env = env
        self.started: dict[int, HostJob] = {}

    def __enter__(self) -> Pods:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.started.values():
            pod.end()

    def start(self, *indices: int) -> Pods:
        """Start pods, all of them by default."""
        for index in indices or range(self._pods):
            env = {
                "KUBERNETES_SERVICE_HOST": "10.96.0.1",
                "JOB_COMPLETION_INDEX": str(index),
                "PET_NNODES": str(self._pods),
                "PET_MASTER_ADDR": "h1",
                "MUSTER_TOKEN": TOKEN,
                **self._env,
            }
            host = f"h{index + 1}"
            self.started[index] = HostJob(self._lab, host, self._folder, *self._argv, **env)
        return self

    def wait_for(self, words: str, pod: int = 0) -> None:
        """Until a pod has printed this."""
        job = self.started[pod]
        wait_until(words, lambda: re.search(words, job.out + job.err), patience(60), lambda: self.said)

    @property
    def said(self) -> str:
        """What all pods have printed."""
        return "\n".join(f"--- pod {index}\n{job.out}{job.err}" for index, job in self.started.items())

    def ends(self, limit: float = 60) -> list[Done]:
        """Wait for the ends of all pods, in the order of their indices."""
        return [self.started[index].wait(limit) for index in sorted(self.started)]


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    with Lab(3, bind=(shared,)) as lab:
        yield lab


@pytest.fixture
def folder(shared: Path, request: pytest.FixtureRequest) -> Path:
    folder = shared / request.node.name
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder


def test_all_pods_run_one_job_and_end_with_its_exit_code(lab: Lab, folder: Path):
    with Pods(
        lab, folder, "--nproc", "2", "train.py", "end", "flag", MUSTER_JOB_ID="20261118-010203-train-3f9a"
    ) as pods:
        first, second = pods.start().ends()
    assert (first.code, second.code) == (0, 0), pods.said
    assert len(re.findall(r"rank \d of 4 on h[12]", first.out)) == 4, pods.said
    assert "2 hosts" in first.err
    assert second.out == ""
    assert "runs the controller" in second.err
    assert first.folder.name == "20261118-010203-train-3f9a"
    assert not (second.state / "muster").exists()


def test_a_failed_run_fails_in_every_pod_and_first_where_all_output_is(lab: Lab, folder: Path):
    with Pods(lab, folder, "--nproc", "1", "train.py", "fail", "flag") as pods:
        first = pods.start().started[0].wait(60)
        assert pods.started[1].process.poll() is None, "the logs of pod 0 would be lost"
        second = pods.started[1].wait(60)
    assert (first.code, second.code) == (7, 7), pods.said
    assert "rank 1 on " in first.err


def test_a_pod_waits_for_the_first_one_and_says_what_it_waits_for(lab: Lab, folder: Path):
    with Pods(lab, folder, "--nproc", "1", "train.py", "end", "flag") as pods:
        pods.start(1)
        pods.wait_for("waiting for h1, port 29430: .* does not answer yet", pod=1)
        assert [done.code for done in pods.start(0).ends()] == [0, 0], pods.said


# A Python whose agent gives up after 3 s and not after 120 s: pods wait for each other that long.
HASTY = f"""\
#!/bin/sh
MUSTER_DIAL=$(printf %s "$MUSTER_DIAL" | sed 's/"limit": 120.0,/"limit": 3.0,/') || exit
export MUSTER_DIAL
exec {sys.executable} "$@"
"""


def test_a_pod_with_another_secret_is_not_let_in_and_runs_nothing(lab: Lab, folder: Path):
    (folder / "hasty").write_text(HASTY)
    (folder / "hasty").chmod(0o755)
    with Pods(lab, folder, "--nproc", "1", "train.py", "end", "flag") as pods:
        pods.start(0)
        pods._env["MUSTER_TOKEN"] = TOKEN[::-1]
        pods._argv = ("--python", str(folder / "hasty"), *pods._argv)
        stranger = pods.start(1).started[1]
        done = stranger.wait(60)
        assert done.code == 119, pods.said
        assert "certificate verify failed" in done.err
        assert pods.started[0].out == ""


def test_a_pod_that_is_killed_ends_the_run_and_is_named(lab: Lab, folder: Path):
    with Pods(lab, folder, "--nproc", "1", "--lost-after", "3", "train.py", "wait", "flag") as pods:
        pods.start().wait_for("rank 1 of 2")
        pods.started[1].process.kill()
        first, _ = pods.ends()
    assert first.code == 125, pods.said
    assert re.search(r"h2|node-1", first.err), pods.said


def test_a_pod_that_is_replaced_joins_the_job_again(lab: Lab, folder: Path):
    options = ("--nproc", "1", "--min-hosts", "2", "--lost-after", "3")
    with Pods(lab, folder, *options, "train.py", "wait", str(folder / "flag")) as pods:
        pods.start().wait_for("rank 1 of 2")
        killed = pods.started[1]
        killed.process.kill()
        killed.process.wait(patience(20))
        pods.start(1).wait_for("rank 1 of 2 .* attempt 1")
        (folder / "flag").touch()
        assert [done.code for done in pods.ends()] == [0, 0], pods.said


def test_sigterm_to_a_pod_lets_all_ranks_save(lab: Lab, folder: Path):
    with Pods(lab, folder, "--nproc", "1", "train.py", "wait", "flag") as pods:
        pods.start().wait_for("rank 1 of 2")
        pods.started[1].process.send_signal(signal.SIGTERM)
        first, second = pods.ends()
    assert {"SAVED 0", "SAVED 1"} <= set(re.findall(r"SAVED \d", first.out)), pods.said
    assert first.code == second.code != 0, pods.said
    assert "received SIGTERM" in first.err


def test_sigterm_to_the_first_pod_ends_the_run_in_all_pods(lab: Lab, folder: Path):
    with Pods(lab, folder, "--nproc", "1", "train.py", "wait", "flag") as pods:
        pods.start().wait_for("rank 1 of 2")
        pods.started[0].process.send_signal(signal.SIGTERM)
        assert [done.code for done in pods.ends()] == [143, 143], pods.said


def test_the_controller_killed_leaves_nothing_in_the_other_pod(lab: Lab, folder: Path):
    with Pods(lab, folder, "--nproc", "1", "--lost-after", "3", "train.py", "wait", "flag") as pods:
        pods.start().wait_for("rank 1 of 2")
        pods.started[0].process.kill()
        assert pods.started[1].wait(60).code == 125, pods.said
        assert not [command for _, command in lab.processes("h2") if "train.py" in command]


def test_pods_without_a_secret_say_what_is_needed(lab: Lab, folder: Path):
    with Pods(lab, folder, "train.py", "end", "flag", MUSTER_TOKEN="") as pods:
        ends = pods.start().ends()
    assert [done.code for done in ends] == [2, 2], pods.said
    for done in ends:
        assert "the pods share no secret" in done.err
        assert "kubectl create secret generic muster" in done.err


def test_a_pod_that_does_not_know_the_first_one_says_what_is_needed(lab: Lab, folder: Path):
    with Pods(lab, folder, "train.py", "end", "flag", PET_MASTER_ADDR="") as pods:
        done = pods.start(1).started[1].wait(60)
    assert done.code == 2, pods.said
    assert "headless Service" in done.err


def test_a_pod_of_an_indexed_job_without_a_number_of_pods_runs_alone(lab: Lab, folder: Path):
    with Pods(lab, folder, "--nproc", "2", "train.py", "end", "flag", PET_NNODES="") as pods:
        done = pods.start(1).started[1].wait(60)
    assert done.code == 0, pods.said
    assert "rank 1 of 2 on h2" in done.out
    assert "set PET_NNODES" in done.err


WAITS = """\
import sys, time
open(sys.argv[1], "w").close()
time.sleep(100)
"""


def test_muster_as_process_1_reaps_orphans_and_passes_sigterm_on(tmp_path: Path):
    (tmp_path / "train.py").write_text(WAITS)
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", MUSTER, "run", "--no-zygote", "train.py"]
    errors = tmp_path / "err"
    with (
        errors.open("wb") as err,
        ending(
            subprocess.Popen(
                [*argv, str(tmp_path / "ready")],
                cwd=tmp_path,
                env={**PLAIN, **state},
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
            )
        ) as process,
    ):
        wait_until("the script", (tmp_path / "ready").exists, patience(60), errors.read_text)
        (init,) = _children(process.pid)
        stray = subprocess.run(
            ["nsenter", "-t", str(init), "-p", "-m", "sh", "-c", "(sleep 0.2 &) ; true"], check=True, timeout=20
        )
        assert stray.returncode == 0
        time.sleep(0.3)  # the orphan ends meanwhile; what follows would find it
        wait_until("no zombies below process 1", lambda: not _zombies(init), patience(20))
        subprocess.run(["kill", "-TERM", str(init)], check=True)
        assert process.wait(patience(30)) == 143, errors.read_text()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _zombies(pid: int) -> list[int]:
    return [each for each in _children(pid) if ") Z " in Path(f"/proc/{each}/stat").read_text()]
