"""Removing the folders of jobs that ended long ago: only when asked to, and nothing that may hold a rank's work."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from muster.jobs.job_folders import KeptJob, job_folders, read_job

_CODE = "code"
"""What --sync has sent: ranks work in it, so that checkpoints may lie there."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was removed and what was not."""

    removed: tuple[str, ...]
    size: int
    """Bytes of what was removed."""
    with_code: tuple[Path, ...]
    """Folders left alone because ranks worked in them."""
    failed: tuple[str, ...]
    """Sentences about what could not be removed."""


def prune(older: float) -> Pruned:
    """Remove the folder of every job here that has ended and was last written to more than `older` seconds ago."""
    removed: list[str] = []
    with_code: list[Path] = []
    failed: list[str] = []
    size = 0
    for job in map(read_job, job_folders()):
        if job.folder.is_symlink() or job.may_run or time.time() - last_written(job) < older:
            continue
        if any(entry.name.startswith(_CODE) for entry in job.folder.iterdir()):
            with_code.append(job.folder)
            continue
        holds = sum(found.st_size for found in _files(job.folder))
        try:
            shutil.rmtree(job.folder)
        except OSError as error:
            failed.append(f"{error.filename or job.folder} cannot be removed: {error.strerror}")
            continue
        removed.append(job.id)
        size += holds
    return Pruned(removed=tuple(removed), size=size, with_code=tuple(with_code), failed=tuple(failed))


def last_written(job: KeptJob) -> float:
    """When a job was last heard of, by its state or, where it left none, by its files."""
    if job.state is not None:
        return job.state.now
    return max((found.st_mtime for found in _files(job.folder)), default=job.folder.stat().st_mtime)


def _files(folder: Path) -> Iterator[os.stat_result]:
    return (os.lstat(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)
