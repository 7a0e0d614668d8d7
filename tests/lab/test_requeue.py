"""Jobs that outlive their allocation: requeued by a real Slurm, or submitted again to the stand-in of PBS."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine_jobs import NEEDS_SLURM
from launching import MUSTER, PLAIN
from pbs import PbsSite
from waiting import patience, wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180), *NEEDS_SLURM[2:]]

LOOKS = 0.5
"""Seconds between two questions to Slurm, each of which starts programs."""

# Plain save and resume: on SIGUSR1 each rank saves its step and exits, as most handlers do; it ends at step LAST.
TRAIN = """\
import os, pathlib, signal, sys, time
kept = pathlib.Path(f"step-{os.environ['RANK']}")
warned = []
signal.signal(signal.SIGUSR1, lambda *_: warned.append(1))
step = int(kept.read_text()) if kept.exists() else 0
ids = [os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "MUSTER_JOB", "WANDB_RUN_ID", "WANDB_RESUME")]
print("from", step, *ids, flush=True)
while not pathlib.Path("finish").exists():
    step += 1
    time.sleep(0.02)
    if warned:
        if os.environ.get("FAILS"): raise ValueError("the disk is full")
        kept.write_text(str(step))
        print(f"saved {step} after {len(warned)} warning", flush=True)
        sys.exit(int(os.environ.get("CODE", "0")))
print("finished", flush=True)
"""

# Ends when a file appears, and reports when its first all_reduce is done.
TOGETHER = """\
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("works", os.environ["TORCHELASTIC_RESTART_COUNT"], "rank", dist.get_rank(), "on", os.uname().nodename, flush=True)
while True:
    over = torch.tensor(float(os.path.exists("finish")))
    dist.all_reduce(over)
    if over.item(): break
    time.sleep(0.05)
print("finished", flush=True)
"""

# The same without torch; one test with spares keeps torch.
APART = """\
import os, time
print("works", os.environ["TORCHELASTIC_RESTART_COUNT"], "rank", os.environ["RANK"], flush=True)
while not os.path.exists("finish"): time.sleep(0.05)
print("finished", flush=True)
"""


class Cluster:
    """A directory of one test on the hosts of a lab."""

    def __init__(self, lab: Lab, folder: Path, path: str = PLAIN["PATH"], home: Path | None = None) -> None:
        self.lab = lab
        self.folder = folder
        self._env = {**PLAIN, "PATH": path, "HOME": str(home or folder)}
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(TRAIN)
        (folder / "together.py").write_text(TOGETHER)
        (folder / "apart.py").write_text(APART)

    def sh(self, *argv: str) -> subprocess.CompletedProcess[str]:
        with self.lab.popen(
            "h1",
            list(argv),
            cwd=str(self.folder),
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            out, err = process.communicate(timeout=patience(60))
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def submit(self, *argv: str) -> str:
        done = self.sh(MUSTER, "submit", *argv)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def muster(self, *argv: str) -> str:
        done = self.sh(MUSTER, *argv)
        return done.stdout + done.stderr

    @property
    def output(self) -> str:
        """What the batch jobs of this test have written, all of them."""
        files = sorted([*self.folder.glob("*.out"), *self.folder.glob("*.o[0-9]*")])
        return "".join(file.read_text(errors="replace") for file in files)

    def wait_for(self, text: str, times: int = 1, limit: float = 90) -> None:
        wait_until(f"{times} times {text!r}", lambda: self.output.count(text) >= times, limit, lambda: self.output)

    def begun(self) -> list[list[str]]:
        """Step, attempt, job, W&B run and mode that each rank 0 printed at its start."""
        return [found.split() for found in re.findall(r"\[\S+ 0\] from (.*)", self.output)]

    def finish(self) -> None:
        (self.folder / "finish").touch()


REQUEUE = ("--slurm", "--nodes", "2", "--time", "1h", "--requeue", "2", "--signal", "120", "--no-zygote")


@dataclass(frozen=True, kw_only=True)
class Early:
    """A job that was started before all tests, because it waits long for Slurm."""

    cluster: Cluster
    job: str


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Early]]:
    """A job on h1 and h4 whose time is over, and one on h2 and h3 whose batch host has failed.

    Slurm looks at the limits every 30 s, and at a silent host for 15 to 30 s.
    """
    folder = tmp_path_factory.mktemp("early")
    with Lab(4, slurm=True, bind=(folder,)) as lab:
        limit, failure = Cluster(lab, folder / "limit"), Cluster(lab, folder / "failure")
        # With --no-kill, Slurm would keep it running without its script until the time limit.
        spares = ("--spares", "1", "--extra", "--nodelist=h2,h3")
        jobs = {
            "limit": Early(cluster=limit, job=limit.submit(*REQUEUE, "--extra", "--nodelist=h1,h4", "train.py")),
            "failure": Early(cluster=failure, job=failure.submit(*REQUEUE, *spares, "train.py")),
        }
        limit.wait_for("from 0", 2)
        limit.sh("scontrol", "update", f"JobId={jobs['limit'].job}", "EndTime=now+110")
        limit.sh("scontrol", "update", "NodeName=h4", "State=DRAIN", "Reason=later")  # it begins again in its test only
        failure.wait_for("from 0")
        lab.power_off("h2")
        yield jobs


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    with Lab(3, slurm=True, bind=(shared,)) as lab:
        yield lab


@pytest.fixture
def slurm(
    early: dict[str, Early],  # these jobs wait for Slurm meanwhile
    lab: Lab,
    shared: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    del early
    cluster = Cluster(lab, shared / re.sub(r"\W+", "-", request.node.name))
    yield cluster
    cluster.sh("scancel", "--me")
    for host in lab.status():
        if host.state != "up":
            lab.reboot(host.name)
    idle = ["sh", "-c", "squeue -h | grep -c . ; sinfo -h -N -o %T | grep -cv idle"]
    wait_until("an idle cluster", lambda: lab.run("h1", idle, timeout=30).stdout.split() == ["0", "0"], 60, every=LOOKS)


def slurm_job(cluster: Cluster, job: str) -> dict[str, str]:
    said = cluster.sh("scontrol", "show", "job", job).stdout
    return dict(pair.split("=", 1) for pair in said.split() if "=" in pair)


def await_state(cluster: Cluster, job: str, state: str, restarts: str, limit: float = 60) -> None:
    def reached() -> bool:
        known = slurm_job(cluster, job)
        return (known["JobState"], known["Restarts"]) == (state, restarts)

    wait_until(
        f"{state} {restarts}", reached, limit, lambda: f"{slurm_job(cluster, job)}\n{cluster.output}", every=LOOKS
    )


def warn(cluster: Cluster, job: str) -> None:
    """The signal of `--signal=B:USR1@120`, without waiting for the time limit."""
    assert cluster.sh("scancel", "--batch", "--signal=USR1", job).returncode == 0


def at_once(cluster: Cluster, job: str) -> None:
    """Skip the two minutes for which Slurm holds a requeued job back, which are for the end of its last run.

    A job that starts again before that end gets the exit code of its last run.
    """

    time.sleep(4)  # nothing shows that slurmctld has heard of the end of the last run

    def runs() -> bool:
        cluster.sh("scontrol", "update", f"JobId={job}", "StartTime=now")
        return slurm_job(cluster, job)["JobState"] == "RUNNING"

    wait_until(f"job {job} to run again", runs, 60, lambda: f"{slurm_job(cluster, job)}\n{cluster.output}", every=LOOKS)


@pytest.mark.parametrize("code", ["0", "3"])
def test_ranks_may_save_and_exit_with_any_code(slurm: Cluster, code: str) -> None:
    job = slurm.submit(*REQUEUE, "--env", f"CODE={code}", "train.py")
    slurm.wait_for("from 0", 2)
    warn(slurm, job)
    await_state(slurm, job, "PENDING", "1")
    assert slurm.output.count("saved ") == 2, slurm.output


def test_a_failure_after_the_warning_is_not_requeued(slurm: Cluster) -> None:
    job = slurm.submit(*REQUEUE, "--env", "FAILS=1", "train.py")
    slurm.wait_for("from 0", 2)
    warn(slurm, job)
    await_state(slurm, job, "FAILED", "0")
    assert "ValueError: the disk is full" in slurm.output
    assert re.search(r"is not requeued, because rank \d failed", slurm.output), slurm.output


def test_a_canceled_job_is_not_requeued(slurm: Cluster) -> None:
    job = slurm.submit(*REQUEUE, "train.py")
    slurm.wait_for("from 0", 2)
    slurm.sh("scancel", job)
    await_state(slurm, job, "CANCELLED", "0")
    assert "requeueing" not in slurm.output


def test_a_job_is_requeued_at_most_as_often_as_asked(slurm: Cluster) -> None:
    job = slurm.submit(*REQUEUE[:5], "--requeue", "1", "--no-zygote", "train.py")
    slurm.wait_for("from 0", 2)
    warn(slurm, job)
    await_state(slurm, job, "PENDING", "1")
    at_once(slurm, job)
    slurm.wait_for(" from ", 4)
    warn(slurm, job)
    await_state(slurm, job, "FAILED", "1")
    assert "is not requeued, because it has been requeued 1 time" in slurm.output


def test_slurm_requeues_a_preempted_job_itself_and_muster_continues_it(slurm: Cluster) -> None:
    job = slurm.submit(*REQUEUE, "train.py")
    slurm.wait_for("from 0", 2)
    slurm.sh("scontrol", "requeue", job)  # what a preemption does
    await_state(slurm, job, "PENDING", "1")
    at_once(slurm, job)
    slurm.wait_for(" from ", 4)
    slurm.finish()
    await_state(slurm, job, "COMPLETED", "1")
    (first, again) = slurm.begun()
    assert (first[1], again[1]) == ("0", "1")
    assert first[2] == again[2]


def test_a_node_that_goes_down_costs_a_spare_and_not_the_job(slurm: Cluster) -> None:
    job = slurm.submit("--slurm", "--nodes", "3", "--spares", "1", "--no-check", "together.py")
    slurm.wait_for("works 0", 2)
    slurm.lab.power_off("h2")
    slurm.wait_for("works 1", 2)
    assert "spare h3 replaces h2 (rank 1)" in slurm.output
    # Slurm notices later, and takes the node out of the job.
    wait_until("h2 to be down", lambda: slurm_job(slurm, job)["NumNodes"] == "2", 60, lambda: slurm.output, every=LOOKS)
    slurm.finish()
    await_state(slurm, job, "COMPLETED", "0")
    assert slurm.output.count("finished") == 2, slurm.output


def test_a_node_that_returns_becomes_a_spare(slurm: Cluster) -> None:
    slurm.submit("--slurm", "--nodes", "3", "--spares", "1", "--no-check", "--no-zygote", "apart.py")
    slurm.wait_for("works 0", 2)
    slurm.lab.power_off("h2")
    slurm.wait_for("works 1", 2)
    slurm.lab.reboot("h2")
    slurm.wait_for("h2 is back and is a spare now")
    slurm.lab.power_off("h3")
    slurm.wait_for("works 2", 2)
    slurm.finish()
    slurm.wait_for("finished", 2)
    assert "spare h2 replaces h3 (rank 1)" in slurm.output


# --- jobs that waited for Slurm meanwhile ----------------------------------------------------------------------


def test_a_job_continues_after_its_time_limit_as_the_same_job(early: dict[str, Early]) -> None:
    slurm, job = early["limit"].cluster, early["limit"].job
    await_state(slurm, job, "PENDING", "1", 90)
    assert re.search(r"requeued .*train\.py", slurm.muster("ps")), slurm.muster("ps")
    slurm.sh("scontrol", "update", "NodeName=h4", "State=RESUME")
    at_once(slurm, job)
    slurm.wait_for("with attempt 1")
    slurm.wait_for(" from ", 4)
    slurm.finish()
    await_state(slurm, job, "COMPLETED", "1")
    (first, again), log = slurm.begun(), slurm.output
    assert log.count("after 1 warning") == 2, log
    assert log.count("requeueing Slurm job") == 1, log
    saved = re.findall(r"\[\S+ 0\] saved (\d+)", log)
    assert (first[0], [again[0]]) == ("0", saved), log
    assert (first[1], again[1]) == ("0", "1")
    assert first[2:] == again[2:] == [first[2], first[2], "allow"]
    assert len(slurm.muster("ps").splitlines()) == 2  # the header and one job
    assert f"saved {saved[0]}" in slurm.muster("logs", "--attempt", "0")
    assert "finished" in slurm.muster("logs")


def test_a_job_whose_batch_host_fails_is_requeued_by_the_others(early: dict[str, Early]) -> None:
    slurm, job = early["failure"].cluster, early["failure"].job
    await_state(slurm, job, "PENDING", "1", 100)
    slurm.lab.reboot("h2")
    at_once(slurm, job)
    slurm.wait_for(" from ", 2)
    (first, again) = slurm.begun()
    assert (first[1], again[1]) == ("0", "1")
    assert first[2] == again[2]


# --- PBS ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(lab: Lab, shared: Path) -> Iterator[PbsSite]:
    with PbsSite(lab, shared) as site:
        yield site


@pytest.fixture
def pbs(site: PbsSite, shared: Path, request: pytest.FixtureRequest) -> Cluster:
    return Cluster(site.lab, shared / re.sub(r"\W+", "-", request.node.name), site.path, site.home)


PBS_REQUEUE = ("--pbs", "--nodes", "2", "--time", "70s", "--requeue", "2", "--signal", "60s", "--no-zygote")


def test_where_users_may_not_use_qrerun_pbs_gets_the_script_again(pbs: Cluster, site: PbsSite) -> None:
    job = pbs.submit(*PBS_REQUEUE, "train.py")
    pbs.wait_for("requeueing PBS job")  # Muster gives the warning itself, 60 s before the end of the walltime
    pbs.wait_for(" from ", 4)
    pbs.finish()
    pbs.wait_for("finished", 2)
    (first, again), log = pbs.begun(), pbs.output
    assert log.count("after 1 warning") == 2, log
    assert [again[0]] == re.findall(r"\[\S+ 0\] saved (\d+)", log)
    assert (first[1], again[1]) == ("0", "1")
    assert first[2:] == again[2:] == [first[2], first[2], "allow"]
    new = f"{int(job.partition('.')[0]) + 1}.{job.partition('.')[2]}"
    wait_until("the end of both", lambda: [site.job(each).state for each in (job, new)] == ["F", "F"], 30)
    assert (pbs.folder / f"train-{new.partition('.')[0]}.pbs").read_text().startswith("#!/bin/bash\n#PBS -N train\n")


def test_a_job_that_pbs_runs_again_itself_is_the_same_job(pbs: Cluster) -> None:
    job = pbs.submit(*PBS_REQUEUE[:3], "--time", "1h", "--requeue", "2", "--no-zygote", "train.py")
    pbs.wait_for("from 0", 2)
    assert pbs.sh("env", "STAND_IN_OPERATOR=1", "qrerun", job).returncode == 0
    pbs.wait_for(" from ", 4)
    pbs.finish()
    pbs.wait_for("finished", 2)
    (first, again) = pbs.begun()
    assert (first[1], again[1]) == ("0", "1")
    assert first[2] == again[2]


def test_a_host_of_a_pbs_job_that_fails_costs_a_spare(pbs: Cluster, site: PbsSite) -> None:
    pbs.submit("--pbs", "--nodes", "3", "--spares", "1", "--time", "1h", "--no-check", "--no-zygote", "apart.py")
    pbs.wait_for("works 0", 2)
    pbs.lab.power_off("h2")
    pbs.wait_for("works 1", 2)
    pbs.finish()
    pbs.wait_for("finished", 2)
    assert "spare h3 replaces h2 (rank 1)" in pbs.output
    pbs.lab.reboot("h2")
    site.boot("h2")
