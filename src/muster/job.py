"""A job: a run whose hosts and code are settled, before any host has answered."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.errors import MusterError
from muster.hosts import Host
from muster.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Script:
    """The file every host must have alike."""

    path: str
    """Relative to the working directory where it lies below it."""
    digest: list[int]
    text: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is run, on which hosts, and what was found out about it here."""

    id: str
    spec: RunSpec
    """With an absolute working directory."""
    hosts: tuple[Host, ...]
    """At least one; this machine when the user named none."""
    carried: Mapping[str, str]
    """Variables of the default set that travel to other hosts."""
    script: Script | None = None
    """The script's file; that of a module or of a named function if it lies in the working directory."""
    preload: tuple[str, ...] = ("torch",)
    """What the zygote imports; empty means no zygote."""
    preload_reason: str = ""
    """Why it imports something nobody asked for, or is left out."""
    has_store: bool = True
    """Whether Muster keeps the store where ranks meet; False when the script chooses a port of its own for it."""


def new_job_id(target: str, name: str = "") -> str:
    """An id that sorts by time and contains the job's name, or what it runs: `20261115-041233-train-3f9a`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{name or short_name(target)}-{secrets.token_hex(2)}"


def short_name(target: str) -> str:
    """The part of a job's name that tells what it ran: `train` for train.py, src/train.py and the module my.train."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(target).stem if target.endswith(".py") else target.rpartition(".")[2])
    return stem[:24] or "job"


JOB_ID = re.compile(r"(?P<time>\d{8}-\d{6})-(?P<name>[A-Za-z0-9_-]+)-(?P<end>[0-9a-f]{4})")
"""What `new_job_id` makes."""


def state_folder() -> Path:
    """Where Muster keeps the user's jobs: $XDG_STATE_HOME/muster, else ~/.local/state/muster."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "muster"


def job_folder(job_id: str) -> Path:
    """Where a job's plan and logs are kept."""
    return state_folder() / "jobs" / job_id


def make_job_folder(job_id: str) -> Path:
    """Create the job's folder, readable by the user alone."""
    folder = job_folder(job_id)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_folder().chmod(0o700)
    except OSError as error:
        raise MusterError(
            f"the job's folder {folder} cannot be made ({error.strerror})",
            hint="set XDG_STATE_HOME to a folder of yours",
        ) from None
    return folder
