"""How a process on a host sees that it runs in a job of a batch system; all else about these is in their engines."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The engine, the variables with the job's id and with its CPUs on this host, and whether OMP_NUM_THREADS is set to
# those CPUs although several ranks share them.
_BATCH_SYSTEMS = (
    ("slurm", "SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", False),
    ("pbs", "PBS_JOBID", "NCPUS", True),
)


def batch_system(env: Mapping[str, str]) -> str:
    """The engine whose job this is; empty outside any."""
    return next((engine for engine, job, _, _ in _BATCH_SYSTEMS if job in env), "")


def cpus_given(env: Mapping[str, str]) -> str:
    """How many CPUs of this host the job has, as its batch system says; empty where it does not."""
    return next((env.get(cpus, "") for _, job, cpus, _ in _BATCH_SYSTEMS if job in env), "")


def sets_threads(env: Mapping[str, str]) -> bool:
    """Whether OMP_NUM_THREADS is the batch system's and not the user's."""
    threads = env.get("OMP_NUM_THREADS")
    return any(ours and job in env and threads == env.get(cpus) for _, job, cpus, ours in _BATCH_SYSTEMS)
