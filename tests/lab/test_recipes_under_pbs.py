"""Recipes in PBS jobs: as tasks of pbsdsh, and in a script as it is written for NCI's Gadi."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare import ALL_RECIPES, LIGHT, LIGHT_RECIPES, PLACE, check_recipes, places, script
from pbs import PbsSite

from muster.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.getuid() != 0, reason="a mom writes to /etc of its host, in a lab started as root"),
]


@pytest.fixture(scope="module")
def site(cluster: Lab, shared: Path) -> Iterator[PbsSite]:
    with PbsSite(cluster, shared) as site:
        yield site


def test_recipes_as_tasks_of_pbsdsh_one_on_each_host(site, shared, warm):
    task = f"pbsdsh -- {warm}/python3 {script(shared, ALL_RECIPES)}"
    job = site.qsub("h1", task, select="2:ncpus=1", place="scatter", walltime=110)
    assert job.wait(115) == 0, job.output
    check_recipes(job.output.rstrip("\n"), ["h1", "h2"], "PBS task")
    task = f"pbsdsh -- {sys.executable} {script(shared, PLACE)}"  # this one is not warm
    job = site.qsub("h1", task, select="2:ncpus=1", place="scatter", walltime=110)
    assert job.wait(115) == 0, job.output
    assert sorted(job.output.splitlines()) == places("PBS task", ["h1", "h2"])


def test_several_tasks_on_a_host_without_ranks_are_an_error(site, shared, warm):
    # OpenPBS distinguishes two tasks on one host by numbers that are not ranks.
    task = f"pbsdsh -c 1 -- {warm}/python3 {script(shared, PLACE)}"
    job = site.qsub("h1", task, select="1:ncpus=1:mpiprocs=2", place="scatter", walltime=110)
    job.wait(115)
    assert "PBS does not provide the number of tasks" in job.output
    start = f"/bin/sh -c 'RANK=$0 WORLD_SIZE=3 MASTER_ADDR=h1 MASTER_PORT=29531 exec {warm}/python3 {shared}/script.py'"
    tasks = "\n".join(f"pbsdsh -n {line} -- {start} {line} &" for line in range(3))
    job = site.qsub("h1", f"{tasks}\nwait", select="1:mpiprocs=2:ncpus=2+1:ncpus=1", place="scatter", walltime=110)
    job.wait(115)
    assert sorted(job.output.splitlines()) == places("environment", ["h1", "h1", "h2"])


# After the scripts that NCI's users publish: the request is a sum over all hosts, the nodefile has a line for each CPU,
# and one launcher is started at the first CPU of each host.
GADI = """#!/bin/bash
NNODES=$((PBS_NCPUS / PBS_NCI_NCPUS_PER_NODE))
PROC_PER_NODE=$((PBS_NGPUS / NNODES))
MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
for inode in $(seq 1 $PBS_NCI_NCPUS_PER_NODE $PBS_NCPUS); do
    pbsdsh -n $inode -- /bin/bash -c "OMP_NUM_THREADS=1 exec BIN/torchrun --nnodes=$NNODES \\
        --nproc_per_node=$PROC_PER_NODE --rdzv_id=$PBS_JOBID --rdzv_backend=c10d \\
        --rdzv_endpoint=$MASTER_ADDR:29532 SCRIPT 2>>ERRORS" &
done
wait
"""


def test_recipes_in_a_script_for_gadi(site, shared, warm):
    sums = {"PBS_NCPUS": "8", "PBS_NGPUS": "4", "PBS_NCI_NCPUS_PER_NODE": "4"}
    # The launchers have their own words there: one may leave with the rendezvous while the other still asks it.
    errors = shared / "errors"
    text = (
        GADI.replace("BIN", str(warm)).replace("SCRIPT", script(shared, LIGHT_RECIPES)).replace("ERRORS", str(errors))
    )
    job = site.qsub("h1", text, select="2:ncpus=4:mpiprocs=4:ngpus=2", place="scatter", walltime=110, env=sums)
    assert job.wait(115) == 0, job.output + errors.read_text()
    # c10d numbers the hosts as they come.
    first, second = ("h1", "h2") if "hello from [h1:gloo] process 0/4" in job.output else ("h2", "h1")
    check_recipes(job.output.rstrip("\n"), [first, first, second, second], "torchrun", LIGHT)
