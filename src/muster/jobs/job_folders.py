"""The jobs of this user, as their folders tell: which there are, which is meant, and what became of it."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from muster.errors import MusterError, UsageError
from muster.job import JOB_ID, short_name, state_folder
from muster.jobs import job_client
from muster.jobs.location import STATE, address, birth, is_hidden, remove_address
from muster.jobs.state import JobState, from_data
from muster.text import names

Life = Literal["alive", "ended", "died", "elsewhere", "unknown"]
"""alive: its controller runs here; died: it was killed; elsewhere: on another machine, or in a container here that does
not answer; unknown: it left no state."""

_LAST_STATE = 1.0
"""Seconds between the end of a job's socket and its last state, where its process cannot be seen."""

_LATELY = 60.0
"""Seconds since a state was written after which no other is waited for: the largest jobs write theirs this often."""

_END_OF_TIME = float(1 << 40)
"""Nothing is newer, so that no history travels."""


@dataclass(frozen=True, kw_only=True)
class KeptJob:
    """One job, as far as its folder tells."""

    id: str
    folder: Path
    state: JobState | None
    life: Life

    @property
    def may_run(self) -> bool:
        """Whether it has not ended, as far as can be known here."""
        return self.life in ("alive", "elsewhere")


def jobs_folder() -> Path:
    """Where the folders of all jobs are."""
    return state_folder() / "jobs"


def job_folders() -> list[Path]:
    """The folder of every job, the newest first."""
    try:
        entries = list(jobs_folder().iterdir())
    except OSError:
        return []
    begun = {entry: match["time"] for entry in entries if (match := JOB_ID.fullmatch(entry.name))}
    together = Counter(begun.values())

    def place(entry: Path) -> tuple[str, float]:
        state = _read_state(entry) if together[begun[entry]] > 1 else None  # ids tell seconds only
        return begun[entry], state.begin if state is not None else 0.0

    return sorted(begun, key=place, reverse=True)


def read_job(folder: Path) -> KeptJob:
    """What became of one job; takes away the socket of a controller that died."""
    state = _read_state(folder)
    if state is None and address(folder) is not None:
        state = _ask_state(folder)  # it has just begun
    life = _life(folder, state)
    if life == "died" and state is not None:
        hidden = is_hidden(state.controller_birth)
        may_follow = hidden and time.time() - state.now < _LATELY
        last = _last_state(folder, _LAST_STATE if may_follow else 0.0)  # it may have ended in order just before
        state, life = (last, "ended") if last is not None else (state, "died")
        if life == "died" and not hidden and _probe_socket(folder) == "refused":
            remove_address(folder)
    return KeptJob(id=folder.name, folder=folder, state=state, life=life)


def fresh(job: KeptJob) -> KeptJob:
    """A job with its state of this moment, if it answers; otherwise as it was last written."""
    if not job.may_run or address(job.folder) is None:
        return job
    state = _ask_state(job.folder)
    return read_job(job.folder) if state is None else replace(job, state=state)


def running_jobs() -> list[KeptJob]:
    """The jobs that have not ended; only they have a socket."""
    found = [read_job(folder) for folder in job_folders() if address(folder) is not None]
    return [job for job in found if job.may_run]


def find(text: str) -> KeptJob:
    """The job that a user means: by its id, the beginning or the end of it, the name of its script, or `last`."""
    folders = job_folders()
    if not folders:
        raise UsageError("there are no jobs yet", hint="`muster run --detach train.py` starts one")
    if text == "last":
        return read_job(folders[0])
    for matches in (
        [folder for folder in folders if folder.name == text],
        [folder for folder in folders if folder.name.startswith(text) or folder.name.endswith(f"-{text}")],
    ):
        if len(matches) == 1:
            return read_job(matches[0])
        if matches:
            raise _ambiguous(text, [folder.name for folder in matches])
    return _find_by_name(text, folders)


def _find_by_name(text: str, folders: Sequence[Path]) -> KeptJob:
    """The one of a script's jobs that runs, or the newest of those that have ended."""
    named = [folder for folder in folders if _name(folder) == short_name(text)]
    if not named:
        raise _unknown(text, folders)
    running = [job for job in map(read_job, named) if job.may_run]
    if len(running) > 1:
        raise _ambiguous(text, [job.id for job in running])
    return running[0] if running else read_job(named[0])


def the_running_one() -> KeptJob:
    """The only job that runs now."""
    running = running_jobs()
    if not running:
        raise UsageError("no job is running", hint="`muster ps` lists those that have ended")
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} jobs are running: {names([job.id for job in running], 6)}", hint="name one of them"
        )
    return running[0]


def _name(folder: Path) -> str:
    parts = JOB_ID.fullmatch(folder.name)
    return parts["name"] if parts else ""


def _ambiguous(text: str, ids: Sequence[str]) -> UsageError:
    return UsageError(f"`{text}` could be {len(ids)} jobs: {names(ids, 6)}", hint="type more of the one you mean")


def _unknown(text: str, folders: Sequence[Path]) -> UsageError:
    from difflib import get_close_matches

    known = {name: folder.name for folder in reversed(folders) for name in (folder.name, _name(folder))}
    near = get_close_matches(text, known, n=1)
    newest = names([folder.name for folder in folders], 6)
    hint = f"did you mean `{known[near[0]]}`?" if near else f"the newest are {newest}"
    return UsageError(f"there is no job `{text}`", hint=hint)


def _read_state(folder: Path) -> JobState | None:
    try:
        return from_data(json.loads((folder / STATE).read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # a Muster that kept none, or one that was killed at once


def _ask_state(folder: Path) -> JobState | None:
    try:
        return from_data(job_client.state(folder, since=_END_OF_TIME))
    except (MusterError, TypeError, KeyError):
        return None


def _last_state(folder: Path, limit: float) -> JobState | None:
    """The state of a job that ended in order, written within `limit` seconds from now at the latest."""
    deadline = time.monotonic() + limit
    while True:
        state = _read_state(folder)
        if state is not None and state.phase == "ended":
            return state
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)


def _life(folder: Path, state: JobState | None) -> Life:
    if state is None:
        return "unknown"
    if state.phase == "ended":
        return "ended"
    if state.controller_birth and birth(state.controller) == state.controller_birth:
        return "alive"
    if state.host != socket.gethostname():
        return "elsewhere"
    # A container with this host's name has processes that are not seen here; its socket reaches this far.
    found = _probe_socket(folder)
    if found == "silent" and is_hidden(state.controller_birth):
        return "elsewhere"
    return "alive" if found == "answered" else "died"


def _probe_socket(folder: Path) -> Literal["answered", "silent", "refused"]:
    """Whether the job answers at its socket; refused: there is one, and nobody holds it."""
    try:
        job_client.state(folder, since=_END_OF_TIME)
    except job_client.Refused:
        return "refused"
    except MusterError:
        return "silent"
    return "answered"
