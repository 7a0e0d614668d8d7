"""Folders of jobs as Muster leaves them, without running any."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from muster.job import make_job_folder
from muster.jobs.location import STATE, birth
from muster.jobs.state import HostState, JobState, RankState


def state_of(job_id: str = "20261115-101500-train-3f9a", **fields: Any) -> JobState:
    """The state of a job of two ranks, which this very process runs unless `fields` say otherwise."""
    now = time.time()
    known: dict[str, Any] = {
        "id": job_id,
        "command": "train.py --lr 0.1",
        "cwd": "/code",
        "engine": "local",
        "begin": now - 100,
        "now": now,
        "phase": "running",
        "controller": os.getpid(),
        "controller_birth": birth(os.getpid()),
        "host": socket.gethostname(),
        "world_size": 2,
        "hosts": (HostState(name="h1", state="up", cpus=4),),
        "ranks": tuple(RankState(rank=rank, host="h1", local_rank=rank, state="running") for rank in range(2)),
    }
    return JobState(**{**known, **fields})


def keep(state: JobState) -> Path:
    """Leave a job's folder with this state."""
    folder = make_job_folder(state.id)
    (folder / STATE).write_text(json.dumps(state.as_data()))
    return folder
