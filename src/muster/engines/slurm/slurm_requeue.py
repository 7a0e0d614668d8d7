"""Requeues the surrounding Slurm job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from muster.engines.requeue import Requeue, ask, read_limits

WITHOUT_BATCH_HOST = """\
for i in 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3 4 5 6 7 8 9; do
  sleep 10
  job=" $(scontrol show job -o "$SLURM_JOB_ID") " || exit
  case $job in *" JobState=RUNNING "*" BatchFlag=1 "*) ;; *) exit ;; esac
  nodes=${job#* NodeList=} host=${job#* BatchHost=}
  scontrol show hostnames "${nodes%% *}" | grep -qxF "${host%% *}" && continue
  case $job in *" Requeue=1 "*) exec scontrol requeue "$SLURM_JOB_ID" ;; *) exec scancel "$SLURM_JOB_ID" ;; esac
done; done
"""
"""Shell commands for the other hosts of a job with --no-kill whose batch host may have failed.

Slurm 22.05 removes such a host from the job after SlurmdTimeout (5 minutes by default), and keeps the job running
without its script until the time limit. This requeues it, as Slurm does without --no-kill.
"""


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
        count=int(restarts) if re.fullmatch("[0-9]{1,9}", restarts) else 0,
        cluster="".join(char for char in env.get("SLURM_CLUSTER_NAME", "") if char.isalnum() or char in "_-"),
        number=number,
    )
