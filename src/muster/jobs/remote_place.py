"""Where the controller of a job is when it is on another host: `remote.json` in the job directory on this machine."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from muster.engines.kubernetes.submitted import SubmittedJob
from muster.hosts import Host
from muster.jobs.decode import decode
from muster.jobs.kept_files import read_regular
from muster.jobs.location import STATE

REMOTE = "remote.json"
Life = Literal["", "alive", "ended", "died", "elsewhere", "unknown", "gone"]

_LARGEST_COPY = 256 << 20
"""Bytes; a larger copy of a state is not read."""

_LARGEST = 1 << 20
"""Bytes; a larger remote.json is not read."""


@dataclass(frozen=True, kw_only=True)
class RemotePlace:
    """The host of a controller, and how this machine reaches it."""

    host: Host
    ssh: tuple[str, ...] = ("ssh",)
    """The ssh program, with options that come before all others."""
    python: str | None = None
    """Python on that host; None for the same path as here, else python3."""
    package: str = ""
    """The digest of the Muster that the controller runs; it is kept on that host under this name."""
    mark: str = ""
    """Random, to recognize a job directory that both machines share."""
    confirmed: bool = False
    """Whether the job itself has confirmed its start."""
    shared: bool = False
    """Whether both machines share the job directory, as over NFS; otherwise its state.json here is a copy."""
    results: tuple[str, ...] = ()
    """Where --fetch copies results to, as `scp` reads it."""
    submitted: SubmittedJob | None = None
    """The job of Kubernetes whose first pod is that host; kubectl reaches it instead of ssh."""
    life: Life = ""
    """What that host last reported of the controller; gone: the job directory there was removed."""


def read_place(folder: Path) -> RemotePlace | None:
    """The place of a job's controller, if it is on another host; None if the job was started on this machine."""
    try:
        return decode(RemotePlace, json.loads(read_regular(folder / REMOTE, _LARGEST)))
    except (OSError, ValueError, RecursionError):
        return None


def write_place(folder: Path, place: RemotePlace) -> None:
    """Write remote.json, readable only by the user."""
    write_json(folder / REMOTE, asdict(place))


def write_state_copy(folder: Path, state: dict[str, Any]) -> None:
    """Write the copy of a remote job's state; its time is that of this machine's clock."""
    write_json(folder / STATE, state)


def read_copy(folder: Path) -> dict[str, Any] | None:
    """The copy of a remote job's state; None without one."""
    try:
        data = json.loads(read_regular(folder / STATE, _LARGEST_COPY))
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", data) if isinstance(data, dict) else None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a file of the job directory at once or not at all, readable only by the user."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(data, file)
    new.replace(path)


def copy_command(place: RemotePlace) -> str:
    """The command that copies the results of --fetch to this machine, in backticks."""
    port = ("-P", str(place.host.port)) if place.host.port else ()
    return f"`{shlex.join(('scp', '-r', *port, *place.results))} .`"


def copied_at(folder: Path) -> float | None:
    """When the copy of a remote job's state was made; None if there is none."""
    try:
        return (folder / STATE).stat().st_mtime
    except OSError:
        return None
