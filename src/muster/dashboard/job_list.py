"""The jobs that a dashboard can show: the one it was opened for, and all others of this user."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from muster.dashboard.job_source import Source
from muster.jobs.hosts_text import others, used_hosts
from muster.jobs.job_folders import KeptJob, fresh, job_folders, read_job
from muster.jobs.ps_text import reason, status
from muster.text import count, names

_MOST_JOBS = 200
"""Jobs in the list, the newest first."""

_MOST_SOURCES = 16
"""Jobs whose state and times are kept in memory, besides the one it was opened for."""

_FRESH = 2.0
"""Seconds for which a list is used again: many readers cost no more than one."""


class JobList:
    """Reads the job directories that `muster ps` reads; may be called from many threads."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the directory of the job to show first."""
        self.first = Source(folder)
        self._sources: OrderedDict[str, Source] = OrderedDict()
        self._ended: dict[str, dict[str, Any]] = {}
        """What the list says of jobs that have ended, by id; that does not change."""
        self._entries: list[dict[str, Any]] = []
        self._looked: float | None = None
        self._lock = threading.Lock()
        self._list_lock = threading.Lock()

    def source(self, name: str) -> Source | None:
        """One job by its id; None if there is no such job."""
        if name == self.first.folder.name:
            return self.first
        with self._lock:
            source = self._sources.pop(name, None)
            if source is None:
                # Only a name that the list has becomes a path.
                found = next((folder for folder in job_folders() if folder.name == name), None)
                if found is None:
                    return None
                source = Source(found)
            self._sources[name] = source
            while len(self._sources) > _MOST_SOURCES:
                self._sources.popitem(last=False)
            return source

    def entries(self) -> list[dict[str, Any]]:
        """All jobs, the newest first, each with what a line of the list needs."""
        with self._list_lock:
            if self._looked is None or time.monotonic() - self._looked > _FRESH:
                folders = job_folders()[:_MOST_JOBS]
                self._entries = [self._ended.get(folder.name) or _entry(fresh(read_job(folder))) for folder in folders]
                self._ended = {entry["id"]: entry for entry in self._entries if entry["life"] in ("ended", "died")}
                self._looked = time.monotonic()
            return self._entries


def _entry(job: KeptJob) -> dict[str, Any]:
    state = job.state
    known: dict[str, Any] = {"id": job.id, "life": job.life, "status": status(job, time.time())}
    if state is None:
        return known
    return known | {
        "command": state.command,
        "phase": state.phase,
        "begin": state.begin,
        "now": state.now,
        "exit_code": state.exit_code,
        "stopped_by": state.stopped_by,
        "hung_since": state.hung_since,
        "slow": state.slow,
        "sentence": state.sentence,
        "reason": reason(job),
        "where": f"{count(state.world_size, 'rank')} on {names(used_hosts(state), 4)}{others(state)}",
    }
