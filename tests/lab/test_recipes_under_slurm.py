"""Recipes and muster.init() under a real Slurm: srun, a batch script, mpirun inside an allocation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare import (
    ALL_RECIPES,
    AS_ROOT,
    ENV,
    LIGHT,
    LIGHT_RECIPES,
    PLACE,
    Started,
    check_recipes,
    of_the_ddp_guide,
    places,
    run_on,
    script,
)
from waiting import wait_until

from muster.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab with Slurm needs root"),
    pytest.mark.skipif(not shutil.which("slurmctld", path="/usr/sbin"), reason="apt install slurm-wlm"),
]


@pytest.fixture(scope="module")
def slurm(shared: Path) -> Iterator[Lab]:
    with Lab(3, slurm=True, bind=(shared,)) as lab:
        yield lab


FIRST_TWO = "--nodelist=h1,h2"
"""Slurm would choose another host while it cleans up after an earlier job; so a job waits for these."""


def test_recipes_run_under_srun(slurm, shared, warm):
    # Quiet, because srun itself may report that it waits in the queue.
    argv = ["srun", "--quiet", FIRST_TWO, "--ntasks-per-node=2", warm / "python3", script(shared, ALL_RECIPES)]
    done = run_on(slurm, "h1", *argv)
    assert (done.returncode, done.stderr) == (0, "")
    check_recipes(done.stdout, ["h1", "h1", "h2", "h2"], "srun")


def test_ddp_runs_under_srun_as_the_guide_says(slurm, shared, warm):
    argv = ["srun", "--quiet", "--chdir", shared, FIRST_TWO, "--ntasks-per-node=2", "sh", "-c"]
    where = {"PATH": f"{warm}:{ENV['PATH']}", "MASTER_ADDR": "h1", "MASTER_PORT": "29533"}
    done = run_on(slurm, "h1", *argv, of_the_ddp_guide("srun"), **where)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["epoch 0", "epoch 1", "epoch 2"]


# The usual way: one launcher on each host, the first host is the master, and the port depends on the job.
BATCH = """#!/bin/bash
#SBATCH --nodelist=h1,h2 --ntasks-per-node=1 --cpus-per-task=2 --output=%s --error=%s
export PATH=%s:$PATH
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((10000 + SLURM_JOB_ID %% 20000))
export MASTER_ADDR MASTER_PORT
srun bash -c 'python3 -m torch.distributed.launch --nnodes=2 --node-rank=$SLURM_NODEID --nproc-per-node=2 \\
    --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT %s'
"""


def test_recipes_run_under_a_torch_launcher_on_each_host_of_a_batch_job(slurm, shared, warm):
    # The launchers have their own words there: one may leave with the store while the other still asks it.
    output, errors = shared / "batch.out", shared / "batch.err"
    batch = script(shared, BATCH % (output, errors, warm, script(shared, LIGHT_RECIPES)), "batch.sh")
    submitted = run_on(slurm, "h1", "sbatch", "--parsable", batch)
    assert submitted.returncode == 0, submitted
    job = submitted.stdout.strip()

    def end_state() -> str | None:
        shown = run_on(slurm, "h1", "scontrol", "show", "job", job).stdout
        state = shown.partition("JobState=")[2].split()[0]
        return state if state in ("COMPLETED", "FAILED") else None

    state = wait_until("the end of the job", end_state, 110)
    out = output.read_text()
    assert state == "COMPLETED", out + errors.read_text()
    check_recipes(out, ["h1", "h1", "h2", "h2"], "torch.distributed.launch", LIGHT)
    assert f"[http://h1:{10000 + int(job)}]" in out


def test_recipes_run_under_mpirun_inside_an_allocation(slurm, shared, warm):
    argv = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "mpirun", "-x", "PATH"]
    done = run_on(slurm, "h1", *argv, warm / "python3", script(shared, LIGHT_RECIPES), **AS_ROOT)
    assert done.returncode == 0, done.stderr
    check_recipes(done.stdout, ["h1", "h1", "h2", "h2"], "mpirun (Open MPI)", LIGHT)
    # The trap: variables that srun set for mpirun's daemons are in the ranks too.
    assert "SLURM_STEP_NUM_TASKS" in done.stdout


def test_two_steps_at_once_find_a_rank_0_that_is_not_on_the_first_host(slurm, shared, warm):
    layout = shared / "layout"
    layout.write_text("h3\nh2\nh2\n")  # rank 0 on h3, while Slurm writes the hosts as h[2-3]
    # Quiet, or the second one may say that it waits for the first.
    argv = ["srun", "--quiet", "--ntasks=3", "--distribution=arbitrary", warm / "python3", script(shared, PLACE)]
    steps = [Started(slurm, "h1", argv, SLURM_HOSTFILE=str(layout)) for _ in range(2)]
    for step in steps:
        done = step.end()
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == places("srun", ["h3", "h2", "h2"])


def test_a_heterogeneous_job_is_one_world(slurm, shared, warm):
    argv = ["salloc", "--quiet", "-wh1", "-n1", ":", "-wh2", "-n2", "srun", "--het-group=0,1"]
    done = run_on(slurm, "h1", *argv, warm / "python3", script(shared, PLACE))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == places("srun", ["h1", "h2", "h2"])


def test_hosts_whose_own_name_means_loopback_still_meet(slurm, shared):
    # The ranks of this test are a Python that is not warm.
    hosts = ("h2", "h3")
    for host in hosts:  # as Debian's installer writes it
        line = f"127.0.1.1 {host}"
        run_on(slurm, host, "sh", "-c", f"cp /etc/hosts /root/hosts; (echo {line}; cat /root/hosts) > /etc/hosts")
    try:
        done = run_on(slurm, "h1", "srun", "-w", "h2,h3", "-N2", "-n2", "python3", script(shared, PLACE))
    finally:
        for host in hosts:
            run_on(slurm, host, "cp", "/root/hosts", "/etc/hosts")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == places("srun", ["h2", "h3"])
