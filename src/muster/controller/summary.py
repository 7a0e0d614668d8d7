"""The timeline of a job, and its summary on the screen."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from muster.controller.diagnosis.verdict import Verdict
from muster.controller.monitor.job_status import JobStatus
from muster.output.screen import Screen
from muster.text import count, tilde

_log = logging.getLogger("muster.controller")


@dataclass
class Timeline:
    """The phases of a job, in seconds since the command started."""

    begin: float
    connected: float | None = None
    imported: float | None = None
    first_collective: float | None = None

    def now(self) -> float:
        """Seconds since the command started."""
        return time.time() - self.begin

    def note(self, what: str) -> float:
        """Log an event in the debug log; returns the seconds since the command started."""
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
    """Show which rank failed first and why."""
    screen.failure(verdict.sentence)
    screen.show_block(verdict.detail)
    for line in verdict.lines:
        screen.notice(line)


def show_attempts(screen: Screen, status: JobStatus, last: str) -> None:
    """Show the attempts of a job that had several, and how the last one ended."""
    attempts = status.attempts.state()
    if len(attempts) < 2:
        return
    from muster.jobs.attempts_text import attempt_rows
    from muster.jobs.ps_text import table

    lines = table(attempt_rows(attempts, now=time.time(), last=last, brief=True), None)
    screen.info("\n  ".join([f"{count(len(attempts), 'attempt')}:", *lines]))


def show_summary(
    screen: Screen, verdict: Verdict, timeline: Timeline, status: JobStatus, folder: Path, why_ended: str | None
) -> None:
    """Show the result, the attempts and the timeline; `why_ended` is the reason if a scheduler ended the job."""
    is_function = status.job.spec.call is not None
    code = "" if is_function else f", exit code {verdict.exit_code}"
    took = f"{timeline.now():.1f} s ({timeline}){code}"
    if verdict.ok:
        if why_ended:
            screen.warning(f"{why_ended}; all ranks ended normally")
        if verdict.sentence and not screen.quiet:
            screen.warning(verdict.sentence)
            for note in verdict.notes:
                screen.notice(note)
        show_attempts(screen, status, f"exit code {verdict.exit_code}")
        screen.info(f"done after {took}")
        return
    if not is_function:  # the failure of a function is raised as an exception
        show_failure(screen, verdict)
    show_attempts(screen, status, verdict.sentence)
    screen.failure(f"failed after {took}; logs in {tilde(folder)}")
