"""What a mom that was killed left behind: its tasks run on, and the next mom ends them and requeues their jobs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import records
from surroundings import hosts
from tasks import members
from wire import HOME, call

KNOWN = HOME / "mom_priv" / "sessions"
"""One file for each task, named after its session, with the id of its job."""


def remember(session: int, job: str) -> None:
    KNOWN.mkdir(parents=True, exist_ok=True)
    (KNOWN / str(session)).write_text(job)


def forget(session: int) -> None:
    (KNOWN / str(session)).unlink(missing_ok=True)


def end_leftovers(host: str) -> bool:
    """Kill the sessions of an earlier mom on this host; returns whether a job is to be run again."""
    requeued = False
    for path in sorted(KNOWN.glob("*")):
        job, session = path.read_text(), int(path.name)
        path.unlink()
        alive = [pid for pid in members(session) if _is_of(pid, job)]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        requeued = (bool(alive) and _requeue(job, host)) or requeued
    return requeued


def _is_of(pid: int, job: str) -> bool:
    """Whether a process belongs to a job; after a reboot, another one may have its number."""
    try:
        return f"PBS_JOBID={job}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _requeue(job: str, host: str) -> bool:
    record = records.load(job)
    if record["state"] not in "RSE" or record["chunks"][0]["host"] != host:
        return False
    for sister in hosts(record)[1:]:
        with suppress(OSError):
            call(sister, do="leave", job=job)
    records.change(job, state="Q", runs=record["runs"] + 1, comment="Job requeued")
    return True
