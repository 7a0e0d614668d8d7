"""A job's plan and state as files in its directory: what is known of a job that no longer answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from muster.controller.monitor.job_status import JobStatus
from muster.jobs.kept_files import not_written
from muster.jobs.location import STATE
from muster.output.log_files import LogFiles
from muster.plan import Plan

if TYPE_CHECKING:
    from muster.jobs.state import JobState

_BETWEEN = 3.0
"""Seconds between two writes."""

_RANKS_PER_SECOND = 200
"""A large job writes its state less often: each rank is some 300 bytes, and the home directory may be remote."""


class JobFiles:
    """Writes the plan and the state of one job to disk; the state in the thread that writes its logs."""

    def __init__(self, status: JobStatus, folder: Path, logs: LogFiles) -> None:
        self._status = status
        self._path = folder / STATE
        self._logs = logs
        self._due = 0.0
        self._phase: str = ""
        if self._path.exists():  # a scheduler has requeued the job
            from muster.jobs.job_folders import read_state

            earlier = read_state(folder)
            if earlier is not None:
                status.take_over(earlier)

    def tick(self) -> None:
        """Write the state if it is due or the job's phase has changed; its history is long, so only at the end."""
        now = time.monotonic()
        if now >= self._due or self._status.phase != self._phase:
            state = self._status.state(history=False)
            self._due, self._phase = now + max(_BETWEEN, len(state.ranks) / _RANKS_PER_SECOND), state.phase
            self._write(state)

    def finish(self) -> None:
        """Write all of it, because the job has ended."""
        self._write(self._status.state())

    def keep(self, plan: Plan) -> None:
        """Write the plan into the job directory; fails before the start if nothing can be written there."""
        folder = self._path.parent
        try:
            (folder / "plan.json").write_text(json.dumps(plan.as_data(), indent=1))
        except OSError as error:
            raise not_written(folder, error) from None

    def _write(self, state: JobState) -> None:
        self._logs.replace(self._path, lambda: json.dumps(state.as_data()).encode())
