"""What an agent says of its host."""

from __future__ import annotations

import os

import pytest

from muster.shared.machine import cpu_count, users_threads

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

pytestmark = pytest.mark.skipif(HERE == 0, reason="agents run on Linux")


@pytest.mark.parametrize(
    ("env", "cpus"),
    [
        ({}, HERE),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "1"}, 1),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "4096"}, HERE),
        ({"PBS_JOBID": "1", "NCPUS": "1"}, 1),
        ({"NCPUS": "1"}, HERE),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "many"}, HERE),
    ],
)
def test_a_job_has_the_cpus_its_scheduler_gave_and_never_more_than_it_may_use(env: dict[str, str], cpus: int):
    assert cpu_count(env) == cpus


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"OMP_NUM_THREADS": "3"}, "3"),
        ({"PBS_JOBID": "1", "NCPUS": "8", "OMP_NUM_THREADS": "8"}, None),
        ({"PBS_JOBID": "1", "NCPUS": "8", "OMP_NUM_THREADS": "2"}, "2"),
        ({}, None),
    ],
)
def test_threads_that_pbs_set_for_a_whole_chunk_are_not_taken_for_the_users(env: dict[str, str], said: str | None):
    assert users_threads(env) == said
