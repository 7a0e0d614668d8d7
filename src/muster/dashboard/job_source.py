"""What the dashboard knows of one job: from the controller while it runs, from the job directory afterwards."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.dashboard import log_pieces
from muster.errors import MusterError
from muster.jobs import job_client
from muster.jobs.job_folders import KeptJob, read_job
from muster.jobs.log_reader import LogTimes, attempt_folder, attempts, rank_log
from muster.jobs.ps_text import status
from muster.jobs.state import JobState, Moment, Report, from_data
from muster.output.log_files import ORDER

_FRESH = 0.5
"""Seconds for which an answer is used again: many readers cost the controller no more than one."""

_MOST_MOMENTS = 2000
"""Kept for the charts; when there are more, every other one is dropped."""

_LARGEST_ORDER = 64 << 20
"""Bytes of the file with the times of log lines; a larger one takes too much time and memory and is not read."""


class Source:
    """One job, running or ended; may be used from many threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._job = KeptJob(id=folder.name, folder=folder, state=None, life="unknown")
        self._times: dict[int, LogTimes] = {}
        self._times_lock = threading.Lock()

    def job(self) -> KeptJob:
        """The job with its state, if there is one yet."""
        with self._lock:
            if self._looked is None or time.monotonic() - self._looked > _FRESH:
                self._job = self._look()
                self._looked = time.monotonic()
            return self._job

    def view(self, since: float) -> dict[str, Any]:
        """What the browser needs each second: the state with the history after `since`, and stacks only counted."""
        job = self.job()
        data = None
        if job.state is not None:
            data = job.state.cut(since=since).as_data()
            data["reports"] = [{**report, "stacks": len(report["stacks"])} for report in data["reports"]]
        return {
            "job": job.id,
            "life": job.life,
            "status": status(job, time.time()),
            "state": data,
            "attempts": attempts(self.folder),
        }

    def report(self, number: int) -> Report:
        """One of the reports, with its stacks."""
        state = self.job().state
        return (state.reports if state is not None else ())[number]

    def log_times(self, attempt: int) -> LogTimes | None:
        """When the lines of an attempt's logs were written; None where there are too many."""
        folder = attempt_folder(self.folder, attempt)
        with self._times_lock:
            try:
                if (folder / ORDER).stat().st_size > _LARGEST_ORDER:
                    return None
            except OSError:
                return None
            times = self._times.setdefault(attempt, LogTimes(folder))
            times.update()
            return times

    def log(self, rank: int, attempt: int) -> Path:
        """Where a rank's output is."""
        return rank_log(self.folder, attempt, rank)

    def find(self, text: str, attempt: int) -> log_pieces.Found:
        """Lines with some text in the logs of all ranks."""
        state = self.job().state
        ranks = [rank.rank for rank in state.ranks] if state is not None else []
        earlier = [known for known in (state.attempts if state is not None else ()) if known.number == attempt]
        ranks = list(earlier[-1].host_by_rank()) or ranks if earlier else ranks
        return log_pieces.find_in_all({rank: self.log(rank, attempt) for rank in ranks}, text)

    def _look(self) -> KeptJob:
        try:
            return replace(self._job, state=self._ask(self._job.state), life="alive")
        except (MusterError, ValueError, TypeError, KeyError):  # no answer, or one of another version
            return read_job(self.folder)

    def _ask(self, before: JobState | None) -> JobState:
        """The state of this moment; only what is new travels of its history and its stacks."""
        history: tuple[Moment, ...] = before.history if before is not None else ()
        reports: tuple[Report, ...] = before.reports if before is not None else ()
        last = history[-1].time if history else 0.0
        state = from_data(job_client.state(self.folder, since=last, stacks=False))
        if len(state.reports) != len(reports):
            reports = from_data(job_client.state(self.folder, since=state.now)).reports
        history = (*history, *(moment for moment in state.history if moment.time > last))
        return replace(state, history=history[::2] if len(history) > _MOST_MOMENTS else history, reports=reports)
