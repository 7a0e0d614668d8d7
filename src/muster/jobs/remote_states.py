"""The states of jobs whose controllers are on other hosts: asked over ssh, all at once, and kept on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from muster.engines.kubernetes.submitted import SubmittedJob
from muster.errors import EXIT_MUSTER, MusterError
from muster.jobs.remote_place import REMOTE, Life, RemotePlace, read_copy, read_place, write_place, write_state_copy
from muster.jobs.remote_python import RemotePython
from muster.jobs.state import from_data

ASK_LIMIT = 5.0
"""Seconds for all hosts to answer."""

_AT_ONCE = 16
"""Connections at a time."""

_A_MOMENT = 10.0
"""Seconds for which the answers of all hosts are used again by one command."""

_asked = float("-inf")
"""When the hosts were last asked."""

_NEVER_BEGAN = 120.0
"""Seconds after which an unconfirmed job that its host does not know was never started."""

_LIVES = frozenset(get_args(Life)) - {""}


def refresh(folders: Sequence[Path], limit: float = ASK_LIMIT) -> None:
    """Update the copies of the states of remote jobs that have not ended; within `limit` seconds, or not at all.

    Hosts that were asked a moment ago are not asked again.
    """
    global _asked
    if time.monotonic() - _asked < _A_MOMENT:
        return
    _asked = time.monotonic()
    places = {folder: place for folder in folders if (place := read_place(folder)) is not None and is_open(place)}
    groups: dict[RemotePlace, list[Path]] = {}
    for folder, place in places.items():
        login = RemotePlace(
            host=place.host, ssh=place.ssh, python=place.python, package=place.package, submitted=place.submitted
        )
        groups.setdefault(login, []).append(folder)
    if not groups:
        return
    with ThreadPoolExecutor(min(len(groups), _AT_ONCE)) as pool:
        list(pool.map(_ask, groups, groups.values(), [limit] * len(groups)))


def is_open(place: RemotePlace) -> bool:
    """Whether this machine keeps a copy of the job's state, and it may still change."""
    return not place.shared and place.life not in ("ended", "died", "gone")


def _ask(place: RemotePlace, folders: Sequence[Path], limit: float) -> None:
    request = {"do": "states", "jobs": [folder.name for folder in folders]}
    try:
        if place.submitted is not None and _has_ended(folders[0], place.submitted):
            return
        with RemotePython(place, request) as remote:
            answer = remote.receive(limit)
    except MusterError:
        return  # the copies stay, and their age shows
    for folder in folders:
        keep(folder, answer)


def _has_ended(folder: Path, submitted: SubmittedJob) -> bool:
    """Whether the first pod of a job has ended; its exit code is then part of the last state."""
    pod = submitted.first_pod()
    place, data = read_place(folder), read_copy(folder)
    if place is None or data is None or (pod is not None and pod.phase not in ("Succeeded", "Failed")):
        return False
    if pod is None:  # a queueing system may hold the job back, so that it has no pods for a long time
        if not submitted.exists():
            removed = {"phase": "ended", "exit_code": EXIT_MUSTER, "stopped_by": "its removal from the cluster"}
            write_state_copy(folder, {**data, **removed})
            write_place(folder, replace(place, life="ended"))
        return True
    code = pod.exit_code if pod.exit_code is not None else EXIT_MUSTER
    if data.get("phase") != "ended":
        why = pod.last_words or (f"{pod.name}: {pod.reason}" if pod.reason else f"ended with exit code {code}")
        write_state_copy(folder, {**data, "phase": "ended", "exit_code": code, "sentence": why})
    write_place(folder, replace(place, life="ended", confirmed=True))
    return True


def keep(folder: Path, answer: dict[str, Any]) -> None:
    """Keep what a host has answered about one of its jobs, if it is valid."""
    place = read_place(folder)
    data, life = _of_job(answer.get("jobs"), folder.name)
    if place is None or place.shared or not life:
        return
    if life == "gone" and not place.confirmed:
        if _age(folder) > _NEVER_BEGAN:
            forget(folder)
        return
    if data is not None:
        write_state_copy(folder, {**data, "host": place.host.name})  # the name that its user knows
    if life != place.life or not place.confirmed:
        write_place(folder, replace(place, life=cast(Life, life), confirmed=True))


def _of_job(answers: Any, job: str) -> tuple[dict[str, Any] | None, str]:
    """What a host has answered about a job: its state, and whether it lives; nothing if the answer is invalid."""
    try:
        data, life = answers[job]
        if life in _LIVES and (data is None or from_data(data).id == job):
            return data, life
    except (ValueError, TypeError, KeyError):
        pass
    return None, ""


def forget(folder: Path) -> None:
    """Remove the directory of a job that was never started."""
    try:
        (folder / REMOTE).unlink()
        folder.rmdir()
    except OSError:
        pass  # it holds something else


def _age(folder: Path) -> float:
    """Seconds since remote.json was written."""
    try:
        return time.time() - (folder / REMOTE).stat().st_mtime
    except OSError:
        return 0.0
