"""The jobs of this user, as their directories show: which exist, which one is meant, and what became of it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from muster.errors import MusterError, RemoteJob, UsageError
from muster.home import state_folder
from muster.job import JOB_ID, short_name
from muster.jobs import job_client
from muster.jobs.kept_files import entries, read_regular
from muster.jobs.location import STATE, address, birth, is_hidden, remove_address
from muster.jobs.remote_place import copied_at, read_place
from muster.jobs.state import JobState, from_data
from muster.text import names, printable

Life = Literal["alive", "ended", "died", "elsewhere", "unknown"]
"""alive: its controller runs here; died: it was killed; elsewhere: on another machine, or in a container here that does
not answer; unknown: it left no state that can be read."""

_LAST_STATE = 1.0
"""Seconds to wait for the last state after a job's socket has gone, where its process cannot be seen."""

_LATELY = 60.0
"""Seconds after which a state is final: the largest jobs write theirs this often."""

_LARGEST_STATE = 256 << 20
"""Bytes; a larger state.json is not read."""

_END_OF_TIME = float(1 << 40)
"""No history is newer, so none is sent."""


@dataclass(frozen=True, kw_only=True)
class KeptJob:
    """One job, as far as its directory shows."""

    id: str
    folder: Path
    state: JobState | None
    life: Life
    damage: str = ""
    """Why its state cannot be read; empty if it can, or if there is none yet."""
    copied: float | None = None
    """When the state was copied from the host of the controller; None if it was read from the job itself."""

    @property
    def may_run(self) -> bool:
        """Whether it has not ended, as far as can be known here."""
        return self.life in ("alive", "elsewhere")

    @property
    def is_running(self) -> bool:
        """Whether it may run and is not silent: a job that was killed with its host writes no last state."""
        if self.life != "elsewhere" or self.copied is not None or self.state is None:
            return self.may_run
        return time.time() - self.state.now < _LATELY


@dataclass(frozen=True, kw_only=True)
class OnlyJob:
    """The only job that a forwarded command sees."""

    id: str
    shown: str
    """What its user types for it on the machine that forwarded the command."""


_only: OnlyJob | None = None


def see_only(job: OnlyJob) -> None:
    """From here on, this process sees one job only, and does not forward commands about it."""
    global _only
    _only = job


def here(job: KeptJob) -> KeptJob:
    """A job whose files are on this machine; RemoteJob if its controller and its files are on another host."""
    place = read_place(job.folder) if _only is None else None
    if place is not None and (job.life == "elsewhere" or not place.shared):
        raise RemoteJob(str(job.folder))
    return job


def jobs_folder() -> Path:
    """Where the directories of all jobs are."""
    return state_folder() / "jobs"


def job_folders() -> list[Path]:
    """The directory of every job, the newest first."""
    begun = {
        jobs_folder() / name: match["time"]
        for name in entries(jobs_folder())
        if (match := JOB_ID.fullmatch(name)) and os.path.isdir(jobs_folder() / name)
        if _only is None or name == _only.id
    }
    together = Counter(begun.values())

    def place(entry: Path) -> tuple[str, float]:
        state = read_state(entry) if together[begun[entry]] > 1 else None  # ids contain seconds only
        return begun[entry], state.begin if state is not None else 0.0

    return sorted(begun, key=place, reverse=True)


def read_job(folder: Path) -> KeptJob:
    """What became of one job; removes the socket of a controller that died."""
    state, damage = _load(folder)
    place = read_place(folder)
    if place is not None and not place.shared:
        died = place.life in ("died", "gone")
        life: Life = "unknown" if state is None else "ended" if state.phase == "ended" else "elsewhere"
        life = "died" if died and life == "elsewhere" else life
        return KeptJob(id=folder.name, folder=folder, state=state, life=life, damage=damage, copied=copied_at(folder))
    if state is None and address(folder) is not None:
        state = _ask_state(folder)  # it has just begun
    life = _life(folder, state)
    if life == "died" and state is not None:
        hidden = is_hidden(state.controller_birth)
        may_follow = hidden and time.time() - state.now < _LATELY
        last = _last_state(folder, _LAST_STATE if may_follow else 0.0)  # it may have ended by itself just before
        state, life = (last, "ended") if last is not None else (state, "died")
        if life == "died" and not hidden and _probe_socket(folder) == "refused":
            remove_address(folder)
    return KeptJob(id=folder.name, folder=folder, state=state, life=life, damage="" if state is not None else damage)


def fresh(job: KeptJob) -> KeptJob:
    """A job with its state of this moment, if it answers; otherwise as it was last written."""
    if not job.may_run or address(job.folder) is None:
        return job
    state = _ask_state(job.folder)
    return read_job(job.folder) if state is None else replace(job, state=state)


def running_jobs() -> list[KeptJob]:
    """The jobs that have not ended; only they have a socket, unless they are on other hosts, which are asked."""
    folders = job_folders()
    remote = {folder for folder in folders if read_place(folder) is not None}
    if remote and _only is None:
        from muster.jobs.remote_states import refresh  # here, because few have such jobs

        refresh(sorted(remote))
    found = [read_job(folder) for folder in folders if address(folder) is not None or folder in remote]
    return [job for job in found if job.is_running]


def find(text: str) -> KeptJob:
    """The job that a user means: by its id, its name, the beginning or the end of its id, its script, or `last`."""
    folders = job_folders()
    if not text:
        raise UsageError("JOB is empty", hint="`muster ps` lists your jobs")
    if not folders:
        raise UsageError("no jobs yet", hint="`muster run --detach train.py` starts one")
    if text == "last":
        return here(read_job(folders[0]))
    exact = [folder for folder in folders if folder.name == text]
    if exact:
        return here(read_job(exact[0]))
    named, part = _matching(text, folders)
    if not named and len(part) > 1:
        raise _ambiguous(text, [folder.name for folder in part])
    named = named or part or [folder for folder in folders if _name(folder) == short_name(text)]
    return here(_running_or_newest(text, named or _of_script(text, folders) or _not_found(text, folders)))


def short_id(job_id: str) -> str:
    """What to type for a job: its name or the end of its id if no other job matches that, else its id."""
    if _only is not None:
        return _only.shown
    folders = job_folders()
    parts = JOB_ID.fullmatch(job_id)
    for text in (parts["name"], parts["end"]) if parts is not None else ():
        named, part = _matching(text, folders)
        if [folder.name for folder in named or part] == [job_id] and text not in ("last", "all"):
            return text
    return job_id


def _matching(text: str, folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The jobs with this name, and those whose id begins or ends with it."""
    return (
        [folder for folder in folders if _name(folder) == text],
        [folder for folder in folders if folder.name.startswith(text) or folder.name.endswith(f"-{text}")],
    )


def _of_script(text: str, folders: Sequence[Path]) -> list[Path]:
    """The jobs of a script that were given a name of their own."""
    states = ((folder, read_state(folder)) for folder in folders)
    commands = ((folder, state.command.removeprefix("-m ").split()) for folder, state in states if state is not None)
    return [folder for folder, words in commands if words and short_name(words[0]) == short_name(text)]


def _running_or_newest(text: str, folders: Sequence[Path]) -> KeptJob:
    """The one of these jobs that runs, or the newest of those that have ended."""
    running = [job for job in map(read_job, folders) if job.is_running]
    if len(running) > 1:
        raise _ambiguous(text, [job.id for job in running])
    return running[0] if running else read_job(folders[0])


def the_running_one(command: str) -> KeptJob:
    """The only job that runs now; `command` is what the user typed, such as `muster stop`."""
    running = running_jobs()
    if not running:
        raise UsageError("no job is running", hint="`muster ps` lists the jobs that have ended")
    if len(running) > 1:
        every = " or `muster stop --all`" if command == "muster stop" else ""
        raise UsageError(
            f"{len(running)} jobs are running: {names([job.id for job in running], 6)}",
            hint=f"type which one, such as `{command} {short_id(running[0].id)}`{every}",
        )
    return here(running[0])


def running_or_last(command: str) -> KeptJob:
    """The only job that runs now, or the newest one if none runs."""
    return the_running_one(command) if running_jobs() else find("last")


def _name(folder: Path) -> str:
    parts = JOB_ID.fullmatch(folder.name)
    return parts["name"] if parts else ""


def _ambiguous(text: str, ids: Sequence[str]) -> UsageError:
    return UsageError(f"`{printable(text)}` matches {len(ids)} jobs: {names(ids, 6)}", hint="type more of the id")


def _not_found(text: str, folders: Sequence[Path]) -> NoReturn:
    from difflib import get_close_matches

    known = dict.fromkeys(name for folder in folders for name in (_name(folder), folder.name))
    near = get_close_matches(text, known, n=1)
    newest = names([folder.name for folder in folders], 6)
    hint = f"did you mean `{near[0]}`?" if near else f"the newest jobs are {newest}"
    raise UsageError(f"job `{printable(text)}` not found", hint=hint)


def read_state(folder: Path) -> JobState | None:
    """The state that was last written; None if there is none that can be read."""
    return _load(folder)[0]


def _load(folder: Path) -> tuple[JobState | None, str]:
    """The state that was last written, or why it cannot be read; neither of a job that was killed at once."""
    try:
        return from_data(json.loads(read_regular(folder / STATE, _LARGEST_STATE))), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"could not read {STATE} ({error.strerror.lower()})" if error.strerror else str(error)
    except (ValueError, RecursionError, MemoryError):
        return None, f"{STATE} is damaged"  # Muster did not write it


def _ask_state(folder: Path) -> JobState | None:
    try:
        return from_data(job_client.state(folder, since=_END_OF_TIME))
    except (MusterError, ValueError):
        return None


def _last_state(folder: Path, limit: float) -> JobState | None:
    """The state of a job that ended by itself, written within `limit` seconds from now at the latest."""
    deadline = time.monotonic() + limit
    while True:
        state = read_state(folder)
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
    if state.host != socket.gethostname() and not is_hidden(state.controller_birth):
        return "elsewhere"
    # The processes of a container or lab host on this machine are not visible here, but its socket is.
    found = _probe_socket(folder)
    if found == "silent" and is_hidden(state.controller_birth):
        return "elsewhere"
    return "alive" if found == "answered" else "died"


def _probe_socket(folder: Path) -> Literal["answered", "silent", "refused"]:
    """Whether the job answers at its socket; refused: there is a socket that no process holds."""
    try:
        job_client.state(folder, since=_END_OF_TIME)
    except job_client.Refused:
        return "refused"
    except MusterError:
        return "silent"
    return "answered"
