"""A job: all that the user asked for, before any host has answered."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from muster.errors import MusterError
from muster.hosts import Host


@dataclass(frozen=True, kw_only=True)
class Call:
    """A Python function with its arguments, as it is sent to the ranks."""

    name: str
    data: bytes = field(repr=False)
    """What a rank unpickles; `agent/call.py` knows the form."""
    python: tuple[int, int] | None
    """The version of Python it needs, because it holds code; None where all code is only named."""
    file: str = ""
    """The file of the module it names, if that lies below the working directory: hosts must have it alike."""
    path: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """What the caller has before and after the interpreter's own folders in sys.path; relative where below the cwd."""
    text: str = field(default="", repr=False)
    """Its source, where there is one, to see what it will import."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One `muster run` or `muster.launch`."""

    id: str
    target: str
    """The script as typed, or the name of the module or function."""
    kind: Literal["script", "module", "function"] = "script"
    args: tuple[str, ...] = ()
    call: Call | None = None
    """The function, if it is one."""
    cwd: str
    hosts: tuple[Host, ...]
    """At least one; this machine when the user named none."""
    env: Mapping[str, str]
    """Variables the user named with `--env`; they win over everything."""
    carried: Mapping[str, str]
    """Variables of the default set that travel to other hosts."""
    preload: tuple[str, ...] = ("torch",)
    """What the zygote imports; empty means no zygote."""
    preload_reason: str = ""
    """Why it imports something nobody asked for, or is left out."""
    has_store: bool = True
    """Whether Muster keeps the store where ranks meet; False when the script chooses a port of its own for it."""
    grace: float = 5.0
    restarts: int = 0
    role: str = "default"
    """ROLE_NAME of every rank."""
    hang_after: float = 30.0
    """Seconds without progress after which a hang is looked for; 0 for never."""
    on_hang: Literal["report", "kill"] = "report"
    master_addr: str | None = None
    master_port: int | None = None
    interface: str | None = None
    sync: bool = False
    debug: bool = False
    """Show the debug log on the screen too."""

    @property
    def command(self) -> str:
        """The script's command line, for people."""
        words = (*(("-m",) if self.kind == "module" else ()), self.target, *self.args)
        return " ".join(words)

    def with_preload(self, modules: tuple[str, ...], reason: str = "") -> Job:
        """The same job with other modules for the zygote; none means no zygote."""
        return replace(self, preload=modules, preload_reason=reason)


def new_job_id(target: str) -> str:
    """A name for a job that sorts by time and tells what it ran: `20261115-041233-train-3f9a`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{short_name(target)}-{secrets.token_hex(2)}"


def short_name(target: str) -> str:
    """The part of a job's name that tells what it ran: `train` for train.py, src/train.py and the module my.train."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(target).stem if target.endswith(".py") else target.rpartition(".")[2])
    return stem[:24] or "job"


JOB_ID = re.compile(r"(?P<time>\d{8}-\d{6})-(?P<name>.+)-(?P<end>[0-9a-f]{4})")
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
