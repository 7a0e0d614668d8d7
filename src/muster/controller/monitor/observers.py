"""What only observes a job, so its errors never end it: status, files, hang detection and straggler detection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from muster.controller.attempt import Attempt
from muster.controller.debug_log import guarded
from muster.controller.events import EventStream
from muster.controller.links.link import AgentLink
from muster.controller.monitor.job_files import JobFiles
from muster.controller.monitor.job_status import JobStatus
from muster.controller.monitor.rank_monitor import RankMonitor
from muster.controller.monitor.straggler_monitor import StragglerMonitor
from muster.controller.notifications import Notifier
from muster.plan import Plan

_STATUS = "what `muster ps`, `top` and the dashboard show of this job"
_RECORD = "what is stored of this job on disk"
_HANGS = "hang detection"
_NOTICES = "what --notify sends"
_SLOW = "straggler detection"


class Observers:
    """All observers: an error in one is reported once; the others and the job continue."""

    def __init__(
        self,
        status: JobStatus,
        record: JobFiles,
        monitor: RankMonitor,
        straggler: StragglerMonitor,
        events: EventStream,
    ) -> None:
        self._status = status
        self._record = record
        self._monitor = monitor
        self._straggler = straggler
        self._notifier = Notifier(status, status.job.spec.notify, monitor.screen.warning)
        self._guard = events.guard
        status.subscribe(events, _STATUS)
        monitor.subscribe(events, _HANGS)
        straggler.subscribe(events, _SLOW)

    def tick(self, links: Sequence[AgentLink], waiting_for: Callable[[], str] | None) -> None:
        """Look again; to be called about twice a second."""
        with self._guard(_STATUS):
            self._status.see(links)
            self._status.tick(waiting_for() if waiting_for is not None else "")
        with self._guard(_SLOW):
            self._straggler.tick()
        with self._guard(_NOTICES):
            self._notifier.tick()
        self.write()

    def begin_attempt(self, plan: Plan, number: int, swaps: Mapping[str, str] | None = None) -> None:
        """All ranks are new; `swaps` has the host that each spare replaced, by the name of the spare."""
        with self._guard(_STATUS):
            self._status.attempt_begins(number, plan, swaps or {})
        with self._guard(_SLOW):
            self._straggler.begin_attempt()

    def watch(self, attempt: Attempt) -> asyncio.Future[None]:
        """Watch the ranks of an attempt that is about to start, until this is cancelled."""
        self._monitor.begin(attempt)
        return asyncio.ensure_future(self._watch(attempt))

    async def _watch(self, attempt: Attempt) -> None:
        monitor = self._monitor
        with guarded(lambda error: monitor.report_bug("hangs are no longer watched for", error)):
            await asyncio.gather(monitor.notice_early_ends(attempt), self._watch_for_hangs(attempt))

    async def _watch_for_hangs(self, attempt: Attempt) -> None:
        if self._monitor.hang_after > 0:
            await asyncio.sleep(0.5)  # nothing can hang yet, and the ranks are just being started
            from muster.controller.monitor.exit_monitor import ExitMonitor
            from muster.controller.monitor.hang_monitor import HangMonitor

            monitors = HangMonitor(self._monitor, attempt), ExitMonitor(self._monitor, attempt)
            await asyncio.gather(*(monitor.watch() for monitor in monitors))

    async def compare_calls(self, attempt: Attempt) -> None:
        """Before the ranks that are left are ended: did one of them call another collective than the rest?"""
        with self._guard(_HANGS):
            await self._monitor.compare_calls(attempt)

    def write(self) -> None:
        """Write the state if it is time to."""
        with self._guard(_RECORD):
            self._record.tick()

    def finish(self) -> None:
        """Write all of it, now that the job has ended."""
        with self._guard(_RECORD):
            self._record.finish()

    async def announce_end(self) -> None:
        """Send what --notify asks for, now that the job has ended."""
        with self._guard(_NOTICES):
            await self._notifier.end()
