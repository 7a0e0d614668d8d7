"""A job: a run whose hosts and code are known, before any host is connected."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.errors import MusterError
from muster.home import state_folder
from muster.hosts import Host
from muster.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Script:
    """The file that must be identical on every host."""

    path: str
    """Relative to the working directory if it is inside."""
    digest: list[int]
    text: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """What runs on which hosts, and what is known about it on this machine."""

    id: str
    spec: RunSpec
    """With an absolute working directory."""
    hosts: tuple[Host, ...]
    """At least one; this machine if the user gave none."""
    carried: Mapping[str, str]
    """Environment variables of the default set, sent to other hosts."""
    script: Script | None = None
    """The file of the script; of a module or a named function only if it is in the working directory."""
    preload: tuple[str, ...] = ("torch",)
    """Modules the zygote imports; empty for no zygote."""
    preload_reason: str = ""
    """Why the zygote imports more than torch, or is disabled."""
    first_attempt: int = 0
    """The number of its first attempt; more than 0 in a job that a scheduler has requeued."""
    has_store: bool = True
    """Whether Muster hosts the store (TCPStore); False if the script chooses its own port for it."""


def new_job_id(target: str, name: str = "") -> str:
    """An id that sorts by time and contains the job's name, or what it runs: `20261115-041233-train-3f9a`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{name or short_name(target)}-{secrets.token_hex(2)}"


def short_name(target: str) -> str:
    """The part of a job ID for what it runs: `train` for train.py, src/train.py and the module my.train."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(target).stem if target.endswith(".py") else target.rpartition(".")[2])
    return stem[:24] or "job"


JOB_ID = re.compile(r"(?P<time>\d{8}-\d{6})-(?P<name>[A-Za-z0-9_-]+)-(?P<end>[0-9a-f]{4})")
"""Matches the result of `new_job_id`."""


def job_folder(job_id: str) -> Path:
    """The job directory, with the plan and the logs of a job."""
    return state_folder() / "jobs" / job_id


def make_job_folder(job_id: str) -> Path:
    """Create the job directory, readable only by the user."""
    folder = job_folder(job_id)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_folder().chmod(0o700)
    except OSError as error:
        raise MusterError(
            f"could not create the job directory {folder} ({error.strerror})",
            hint="set XDG_STATE_HOME to a directory you can write to",
        ) from None
    return folder
