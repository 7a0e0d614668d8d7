"""Detects whether a process runs in a job of a batch system; everything else about them is in their engines."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The engine, the variables with the job id and with the job's CPUs on this host, and whether the batch system sets
# OMP_NUM_THREADS to that number of CPUs although several ranks share them.
_BATCH_SYSTEMS = (
    ("slurm", "SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", False),
    ("pbs", "PBS_JOBID", "NCPUS", True),
)


def batch_system(env: Mapping[str, str]) -> str:
    """The engine of the surrounding job; empty outside of one."""
    return next((engine for engine, job, _, _ in _BATCH_SYSTEMS if job in env), "")


def cpus_given(env: Mapping[str, str]) -> str:
    """The number of CPUs that the batch system gave the job on this host; empty if unknown."""
    return next((env.get(cpus, "") for _, job, cpus, _ in _BATCH_SYSTEMS if job in env), "")


def sets_threads(env: Mapping[str, str]) -> bool:
    """Whether OMP_NUM_THREADS was set by the batch system, not by the user."""
    threads = env.get("OMP_NUM_THREADS")
    return any(ours and job in env and threads == env.get(cpus) for _, job, cpus, ours in _BATCH_SYSTEMS)
