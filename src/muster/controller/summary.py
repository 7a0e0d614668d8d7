"""Where the time of a job went, and what the screen says when it has ended."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from muster.controller.diagnosis.verdict import Verdict
from muster.job import Job
from muster.output.screen import Screen
from muster.text import tilde

_log = logging.getLogger("muster.controller")


@dataclass
class Timeline:
    """When things happened, as seconds since the command started."""

    begin: float
    connected: float | None = None
    imported: float | None = None
    first_collective: float | None = None

    def now(self) -> float:
        """Seconds since the command started."""
        return time.time() - self.begin

    def note(self, what: str) -> float:
        """Put into the debug log what has just happened; returns the seconds since the command started."""
        now = self.now()
        _log.info("%s, after %.3f s", what, now)
        return now

    def __str__(self) -> str:
        phases = {
            "connected": self.connected,
            "imported": self.imported,
            "first collective": self.first_collective,
        }
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items() if seconds is not None)


def show_failure(screen: Screen, verdict: Verdict) -> None:
    """Say which rank failed first and why."""
    screen.warning(verdict.sentence)
    screen.show_block(verdict.detail)
    for line in verdict.lines:
        screen.warning(line)


def show_summary(
    screen: Screen, verdict: Verdict, timeline: Timeline, job: Job, folder: Path, why_ended: str | None
) -> None:
    """The last line: how it went, and where the time went; `why_ended` is the scheduler's reason, if it ended it."""
    is_function = job.spec.call is not None
    code = "" if is_function else f", exit code {verdict.exit_code}"
    took = f"{timeline.now():.1f} s ({timeline}){code}"
    if verdict.ok:
        if why_ended:
            screen.warning(f"{why_ended}; its ranks ended in good order")
        screen.info(f"done after {took}")
        return
    if not is_function:  # a function's failure is reported by the exception it becomes
        show_failure(screen, verdict)
    screen.warning(f"failed after {took}; logs in {tilde(folder)}")
