"""The check of the hosts that goes on while a job starts, and never holds it up for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from muster.controller.debug_log import internal_error
from muster.controller.links.link import AgentLink
from muster.errors import MusterError
from muster.job import Job

Check = Callable[[Job, Sequence[AgentLink]], Coroutine[Any, Any, None]]
"""Asks the hosts what is wrong with them, reports it, and raises what would surely make the job fail."""

_PATIENCE = 0.5
"""Seconds the start waits for it when all else is ready."""

_LATER = 2.0
"""Seconds after which it begins where nothing is imported beforehand: it would be in the way of the start."""


class StartupCheck:
    """A check under way."""

    def __init__(self, check: Check | None, warn: Callable[[str], None]) -> None:
        self._check = check
        self._warn = warn
        self._task: asyncio.Task[None] | None = None
        self._too_late = False
        self._may_stop = False

    def begin(self, job: Job, links: Sequence[AgentLink]) -> None:
        """Start to look."""
        self._may_stop = bool(job.preload)  # nothing is surely fatal for a job of which not even torch is known
        if self._check is not None:
            self._task = asyncio.ensure_future(self._look(self._check, job, links))
            self._task.add_done_callback(self._on_done)

    async def _look(self, check: Check, job: Job, links: Sequence[AgentLink]) -> None:
        if not self._may_stop:
            await asyncio.sleep(_LATER)
        await check(job, links)

    async def settle(self) -> None:
        """Raise what it has found; one that takes longer goes on beside the job."""
        if self._task is not None and self._may_stop:
            await asyncio.wait([self._task], timeout=_PATIENCE)
            if self._task.done():
                self._task.result()
        self._too_late = True

    def end(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Report what comes too late to stop the job."""
        error = None if task.cancelled() else task.exception()
        if self._too_late and isinstance(error, MusterError):
            self._warn(error.message)
        elif self._too_late and error is not None:
            self._warn(internal_error(error))
