"""How a scheduler's job continues after its time limit or a preemption, as `muster submit --requeue` asked for."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.errors import MusterError, UsageError
from muster.job import job_folder
from muster.plan import Plan

LIMIT = "MUSTER_REQUEUE"
"""How often the job may be requeued; the batch script of `muster submit --requeue` exports it."""

WARNING = "MUSTER_SIGNAL"
"""Seconds before the time limit at which the ranks get SIGUSR1; the batch script exports it."""

END = "MUSTER_END"
"""When the time limit comes, in seconds since 1970, for a scheduler that sends no warning; the script exports it."""

VARIABLES = (LIMIT, WARNING, END)

_ANSWER_LIMIT = 60.0
"""Timeout of the scheduler's program in seconds."""


@dataclass(frozen=True, kw_only=True)
class Requeue(ABC):
    """The scheduler's job around this process, which may be requeued."""

    job: str
    """The job as its scheduler's commands name it."""
    title: str
    """`Slurm job 4711`."""
    limit: int
    """How often it may be requeued."""
    warning: float
    """Seconds between the warning signal and the time limit; 0 without a warning."""
    count: int | None = None
    """How often it has been requeued, if the scheduler counts."""
    ends_at: float | None = None
    """When the time limit comes, if Muster has to warn the ranks itself."""

    @property
    @abstractmethod
    def mark(self) -> str:
        """The name of the file in the job directory that stands for this job of the scheduler."""

    @abstractmethod
    def again(self) -> str | None:
        """Put the job back into the queue; returns the mark of a job that was submitted in its place, if any.

        The scheduler may end this process meanwhile. MusterError if it refuses.
        """


def read_limits(env: Mapping[str, str]) -> tuple[int, float, float | None] | None:
    """The limit, the warning time and the end from the variables of the batch script; None without a limit."""
    if not env.get(LIMIT):
        return None
    try:
        end = float(env[END]) if env.get(END) else None
        limit, warning = int(env[LIMIT]), float(env.get(WARNING) or 0)
    except ValueError:
        found = ", ".join(f"{name}={env[name]}" for name in VARIABLES if name in env)
        raise UsageError(
            f"the requeue settings are not numbers: {found}",
            hint="`muster submit --requeue 5 --signal 120 …` writes a batch script that sets them",
        ) from None
    return limit, warning, end


def ask(argv: Sequence[str], limit: float = _ANSWER_LIMIT) -> str:
    """Run a program of the scheduler and return its output; MusterError if it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit
        )
    except subprocess.TimeoutExpired:
        raise MusterError(f"`{argv[0]}` did not answer within {limit:g} s") from None
    except OSError as error:
        raise MusterError(f"could not start `{argv[0]}` ({error.strerror})") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise MusterError(f"`{' '.join(argv)}` failed: {said}")
    return done.stdout


def tracking_env(plan: Plan, rank: int, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which Weights & Biases and MLflow continue the runs of a requeued job, unless the user did.

    Each rank has its own run, as without them: a script may log from rank 0 only or from all ranks. MLflow chooses the
    id of a run itself, so the rank keeps that of its first run in a file.
    """
    if env.get(LIMIT, "0") == "0":
        return {}
    from muster.rank.mlflow_run import FILE

    run_id = plan.job_id if rank == 0 else f"{plan.job_id}-{rank}"
    found = {"WANDB_RUN_ID": run_id, "WANDB_RESUME": "allow"}
    kept = job_folder(plan.job_id) / f"mlflow-run-{rank}"
    try:
        found["MLFLOW_RUN_ID"] = kept.read_text().strip()
    except (OSError, ValueError):
        if "MLFLOW_RUN_ID" not in env:
            found[FILE] = str(kept)
    return {name: value for name, value in found.items() if name not in env}
