"""Ends a job before the time limit of its scheduler, and decides whether it continues there later."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from muster.agent.stopping import time_to_stop
from muster.controller.attempt import Attempt
from muster.controller.diagnosis.rank_end import RankEnd
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.monitor.job_status import JobStatus
from muster.engines.requeue import Requeue
from muster.errors import EXIT_MUSTER, MusterError
from muster.output.screen import Screen
from muster.text import count

WARNING_SIGNAL = signal.SIGUSR1

_RESERVE = 10.0
"""Seconds before the time limit, beside the grace period, in which the job is requeued."""

_EXPECTED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Signals that end a rank without a handler when the scheduler warns the job or ends it."""


def is_failure(end: RankEnd) -> bool:
    """Whether a rank that ended after the warning failed by itself, so that it would fail again.

    Most handlers save a checkpoint and exit, with code 0 or another; ranks that still wait for such a rank lose their
    connection to it.
    """
    if end.stopped or end.status == 0 or end.is_symptom:
        return False
    if end.status < 0:
        return -end.status not in _EXPECTED
    return bool(end.traceback or end.message)


def end_early(attempt: Attempt | None, body: asyncio.Future[Verdict] | None) -> None:
    """End the ranks that have not ended by themselves, or the start of the job."""
    if attempt is not None and not attempt.over.is_set():
        attempt.over.set()
    elif body is not None:
        body.cancel()


def is_time_limit(reason: str | None) -> bool:
    """Whether the scheduler ended the job at its time limit; a job that it preempts it requeues itself."""
    return reason is not None and "time limit" in reason


class RequeueWatch:
    """Knows whether the time limit is near, and what follows from it."""

    def __init__(self, requeue: Requeue | None, folder: Path, screen: Screen, status: JobStatus) -> None:
        self._requeue = requeue
        self._folder = folder
        self._screen = screen
        self._status = status
        self.deadline: float | None = None
        """When the ranks must have ended, in seconds since 1970; None before the warning."""
        self.time_is_up = False
        """Whether the ranks did not end by themselves in time."""
        self._was_finishing = False
        """Whether a rank had ended with exit code 0 before the warning."""
        self.is_decided = False
        """Whether the job is to be requeued."""

    @property
    def is_warned(self) -> bool:
        """Whether the time limit is near, so nothing is started any more."""
        return self.deadline is not None

    @property
    def is_possible(self) -> bool:
        """Whether the scheduler may start the job again."""
        return self._requeue is not None and (self._requeue.count or 0) < self._requeue.limit

    def begin(self, warn: Callable[[], None]) -> None:
        """Call `warn` in time if the scheduler does not send a signal."""
        requeue = self._requeue
        if requeue is not None and requeue.ends_at is not None and requeue.warning:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, requeue.ends_at - requeue.warning - time.time()), warn)

    def on_signal(self, number: int, attempt: Attempt | None, end_ranks: Callable[[], None]) -> str:
        """Take note of the warning; `end_ranks` is called when the time is up. Returns what to add to its message."""
        requeue = self._requeue
        if requeue is None or number != WARNING_SIGNAL or self.is_warned or not (requeue.limit and requeue.warning):
            return ""
        # The scheduler may be early, never late.
        warning = requeue.warning
        left = max(warning - time_to_stop(self._status.job.spec.grace, interrupt=False) - _RESERVE, warning / 2)
        self.deadline = time.time() + left
        self._was_finishing = attempt is not None and bool(attempt.ended_well)

        def up() -> None:
            self.time_is_up = True
            end_ranks()

        asyncio.get_running_loop().call_later(left, up)
        return f", {warning:g} s before the time limit; they have {left:.0f} s to save and exit"

    def expects(self, end: RankEnd) -> bool:
        """Whether a rank may end like this now, while others still save."""
        return self.is_warned and not is_failure(end)

    def settle(self, verdict: Verdict, attempt: Attempt | None, reason: str | None) -> Verdict:
        """Decide whether the job is requeued, and return its verdict; `reason` is the scheduler's for ending it."""
        requeue = self._requeue
        is_drained = attempt is not None and attempt.drained is not None
        is_lost = verdict.is_lost or is_drained
        if requeue is None or not requeue.limit or (self._was_finishing and verdict.ok):
            return verdict
        if not (self.is_warned or is_lost or is_time_limit(reason)):
            return verdict
        failed = [end for end in attempt.ends if is_failure(end)] if attempt is not None else []
        if failed and not is_lost:
            note = f"{requeue.title} is not requeued, because rank {failed[0].rank} failed"
            return replace(verdict, notes=(*verdict.notes, note))
        done = requeue.count or 0
        if done >= requeue.limit:
            note = f"{requeue.title} is not requeued, because it has been requeued {count(done, 'time')}"
            sentence = verdict.sentence or f"ended at the time limit of {requeue.title}"
            return replace(
                verdict, exit_code=verdict.exit_code or EXIT_MUSTER, sentence=sentence, notes=(*verdict.notes, note)
            )
        self.is_decided = True
        because = f"{verdict.sentence}; " if is_lost else ""
        sentence = f"{because}requeueing {requeue.title} ({done + 1} of {requeue.limit})"
        self._screen.warning(sentence)
        self._status.attempt_lost(verdict.sentence if is_lost else "time limit")
        from muster.jobs.ps_text import REQUEUE  # most jobs are not requeued

        self._status.stopped_by = REQUEUE
        return Verdict(exit_code=0, sentence=sentence)

    def after_stop(self, number: signal.Signals | None, sentence: str, reason: str | None) -> Verdict:
        """The verdict of a job that was stopped from outside: the time limit may requeue it, not scancel or Ctrl-C."""
        verdict = Verdict(exit_code=EXIT_MUSTER if number is None else 128 + number, sentence=sentence)
        return self.settle(verdict, None, reason) if is_time_limit(reason) else verdict

    def carry_out(self) -> None:
        """Requeue the job if that was decided; the scheduler may end this process meanwhile."""
        if not self.is_decided or self._requeue is None:
            return
        try:
            mark = self._requeue.again()
        except MusterError as error:
            raise MusterError(f"could not requeue {self._requeue.title}: {error.message}", hint=error.hint) from None
        if mark is not None:
            from muster.jobs.requeue_marks import leave_mark

            leave_mark(self._folder, mark, self._requeue.count or 0)
