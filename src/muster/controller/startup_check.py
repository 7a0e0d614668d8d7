"""The quick check of the hosts while a job starts; it delays the start by at most half a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from muster.controller.debug_log import internal_error
from muster.controller.links.link import AgentLink
from muster.errors import MusterError
from muster.job import Job

Check = Callable[[Job, Sequence[AgentLink]], Coroutine[Any, Any, None]]
"""Checks the hosts, reports warnings, and raises problems that would certainly make the job fail."""

_PATIENCE = 0.5
"""Seconds the start waits for the check when everything else is ready."""

_LATER = 2.0
"""Seconds from the start of the ranks to the check if nothing is preloaded: it would compete with the start."""


class StartupCheck:
    """A check in progress."""

    def __init__(self, check: Check | None, warn: Callable[[str], None]) -> None:
        self._check = check
        self._warn = warn
        self._task: asyncio.Task[None] | None = None
        self._too_late = False
        self._may_stop = False
        self._settled = asyncio.Event()

    def begin(self, job: Job, links: Sequence[AgentLink]) -> None:
        """Start the check."""
        # Without preloaded torch nothing is certainly fatal; the run that started kept agents has checked their hosts.
        self._may_stop = bool(job.preload) and not all(link.is_kept for link in links)
        if self._check is not None:
            self._task = asyncio.ensure_future(self._look(self._check, job, links))
            self._task.add_done_callback(self._on_done)

    async def _look(self, check: Check, job: Job, links: Sequence[AgentLink]) -> None:
        if not self._may_stop:
            await self._settled.wait()
            await asyncio.sleep(_LATER)
        await check(job, links)

    async def settle(self) -> None:
        """Raise what the check has found; if it takes longer, it continues beside the job."""
        if self._task is not None and self._may_stop:
            await asyncio.wait([self._task], timeout=_PATIENCE)
            if self._task.done():
                self._task.result()
        self._too_late = True
        self._settled.set()

    def end(self) -> None:
        """Cancel the check."""
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Report what was found too late to stop the job."""
        error = None if task.cancelled() else task.exception()
        if self._too_late and isinstance(error, MusterError):
            self._warn(error.message)
        elif self._too_late and error is not None:
            self._warn(internal_error(error))
