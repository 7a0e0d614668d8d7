"""Removing the directories of jobs that ended long ago, on request only, and none that may hold a rank's work."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from muster.jobs.job_folders import KeptJob, job_folders, read_job
from muster.jobs.kept_files import entries

_CODE = "code"
"""What --sync has sent: the working directory of ranks, which may contain checkpoints.

With a dot after it: what was not unpacked to its end, so that no rank has run in it.
"""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was removed and what was not."""

    removed: tuple[str, ...]
    size: int
    """Bytes of what was removed."""
    with_code: tuple[Path, ...]
    """Directories that are kept because ranks worked in them."""
    failed: tuple[str, ...]
    """Sentences about what could not be removed."""


def prune(older: float) -> Pruned:
    """Remove the directory of every job here that has ended and was last written to more than `older` seconds ago."""
    removed: list[str] = []
    with_code: list[Path] = []
    failed: list[str] = []
    size = 0
    for job in map(read_job, job_folders()):
        # A copy that is that old is of a host that has not answered since.
        may_run = job.may_run and (job.copied is None or time.time() - job.copied < older)
        if job.folder.is_symlink() or may_run or time.time() - last_written(job) < older:
            continue
        if any(name.startswith(_CODE) and name[len(_CODE) :][:1] != "." for name in entries(job.folder)):
            with_code.append(job.folder)
            continue
        holds = sum(found.st_size for found in _files(job.folder))
        try:
            shutil.rmtree(job.folder)
        except OSError as error:
            failed.append(f"{error.filename or job.folder} could not be removed ({error.strerror or error})")
            continue
        removed.append(job.id)
        size += holds
    return Pruned(removed=tuple(removed), size=size, with_code=tuple(with_code), failed=tuple(failed))


def last_written(job: KeptJob) -> float:
    """When a job last wrote its state or, where it left none, any file."""
    if job.state is not None:
        return job.state.now
    times = [found.st_mtime for found in _files(job.folder)]
    try:
        return max(times) if times else job.folder.stat().st_mtime
    except OSError:
        return time.time()


def _files(folder: Path) -> Iterator[os.stat_result]:
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(path, name))
            except OSError:
                pass  # it was removed meanwhile
