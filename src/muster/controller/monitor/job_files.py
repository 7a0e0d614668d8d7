"""A job's plan and state as files in its folder: what is known of a job that does not answer any more."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from muster.controller.monitor.job_status import JobStatus
from muster.errors import MusterError
from muster.jobs.location import STATE
from muster.output.log_files import LogFiles
from muster.plan import Plan
from muster.text import tilde

if TYPE_CHECKING:
    from muster.jobs.state import JobState

_BETWEEN = 3.0
"""Seconds between two writings."""

_RANKS_PER_SECOND = 200
"""A large job writes its state less often: each rank is some 300 bytes, and a home folder may be far away."""


class JobFiles:
    """Keeps plan and state of one job on disk; the state in the thread that writes its logs."""

    def __init__(self, status: JobStatus, folder: Path, logs: LogFiles) -> None:
        self._status = status
        self._path = folder / STATE
        self._logs = logs
        self._due = 0.0
        self._phase: str = ""

    def tick(self) -> None:
        """Write the state if it is time to, or if the job has come further; its curves are long, so only at the end."""
        now = time.monotonic()
        if now >= self._due or self._status.phase != self._phase:
            state = self._status.state(history=False)
            self._due, self._phase = now + max(_BETWEEN, len(state.ranks) / _RANKS_PER_SECOND), state.phase
            self._write(state)

    def finish(self) -> None:
        """Write all of it, now that the job has ended."""
        self._write(self._status.state())

    def keep(self, plan: Plan) -> None:
        """Write the plan into the job's folder, and find out before the start if nothing can be written there."""
        folder = self._path.parent
        try:
            (folder / "plan.json").write_text(json.dumps(plan.as_data(), indent=1))
        except OSError as error:
            raise MusterError(
                f"{tilde(folder)} cannot be written: {(error.strerror or str(error)).lower()}",
                hint="free some space there, or set XDG_STATE_HOME to another folder",
            ) from None

    def _write(self, state: JobState) -> None:
        self._logs.replace(self._path, lambda: json.dumps(state.as_data()).encode())
