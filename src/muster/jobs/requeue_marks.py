"""Which Muster job a requeued job of a scheduler continues: each leaves a mark in the job directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster.engines.requeue import Requeue
from muster.job import JOB_ID
from muster.jobs.job_folders import jobs_folder
from muster.jobs.kept_files import read_regular
from muster.jobs.log_reader import attempts
from muster.text import count


@dataclass(frozen=True, kw_only=True)
class EarlierRuns:
    """What a requeued job continues."""

    job_id: str
    requeues: int
    """How often it has been requeued, including this time."""
    next_attempt: int
    """The number of the first attempt from now on."""

    def __str__(self) -> str:
        return f"requeued {count(self.requeues, 'time')}, continuing {self.job_id} with attempt {self.next_attempt}"


def find_earlier(requeue: Requeue) -> EarlierRuns | None:
    """The Muster job that this job of the scheduler began; None if it begins only now."""
    if requeue.count == 0:
        return None
    found = sorted(path for path in jobs_folder().glob(f"*/{requeue.mark}") if JOB_ID.fullmatch(path.parent.name))
    if not found:
        return None
    folder = found[-1].parent
    requeues = requeue.count if requeue.count is not None else _read_count(found[-1]) + 1
    return EarlierRuns(job_id=folder.name, requeues=requeues, next_attempt=max(attempts(folder), default=-1) + 1)


def leave_mark(folder: Path, mark: str, requeues: int) -> None:
    """Leave in a job directory that this job of the scheduler belongs to it, and how often it has been requeued."""
    (folder / mark).write_text(f"{requeues}\n")


def _read_count(path: Path) -> int:
    try:
        return max(0, int(read_regular(path, 64)))
    except (OSError, ValueError):
        return 0
