"""Requeues the surrounding Slurm job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.engines.requeue import Requeue, ask, read_limits


@dataclass(frozen=True, kw_only=True)
class SlurmRequeue(Requeue):
    """A job of sbatch; `scontrol requeue` keeps its id and runs its script again."""

    cluster: str = ""
    number: str = ""
    """SLURM_JOB_ID, which differs for each job of an array."""

    @property
    def mark(self) -> str:
        """`slurm-lab-4711`."""
        return "-".join(filter(None, ("slurm", self.cluster, self.number)))

    def again(self) -> None:
        """Slurm ends the script, and holds the job back for two minutes."""
        ask(("scontrol", "requeue", self.job))


def read_requeue(env: Mapping[str, str]) -> SlurmRequeue | None:
    """How the job is requeued; None if its batch script does not ask for that."""
    limits = read_limits(env)
    number = env.get("SLURM_JOB_ID", "")
    if limits is None or not number.isdigit():
        return None
    limit, warning, _ = limits
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    restarts = env.get("SLURM_RESTART_COUNT", "")
    job = f"{array}_{task}" if array and task else number  # by its number, the last job of an array means all of them
    return SlurmRequeue(
        job=job,
        title=f"Slurm job {job}",
        limit=limit,
        warning=warning,
        count=int(restarts) if restarts.isdigit() else 0,
        cluster="".join(char for char in env.get("SLURM_CLUSTER_NAME", "") if char.isalnum() or char in "_-"),
        number=number,
    )
