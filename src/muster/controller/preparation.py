"""Prepares hosts to run ranks: all of them when the job starts, later each one that returns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property

from muster.controller import preflight, prepare
from muster.controller.links.link import AgentLink
from muster.controller.startup_check import Check
from muster.job import Job
from muster.output.screen import Screen

CHECK_LIMIT = 30.0
"""Seconds for the quick check of a host that returns; then it is used without the result."""


class Preparation:
    """What every host of a job gets before it runs ranks."""

    def __init__(self, job: Job, screen: Screen, check: Check | None) -> None:
        self._job = job
        self._screen = screen
        self._check = check
        self._archive: bytes | None = None
        """The working directory as it was sent, so that a host that returns gets the same code."""

    @cached_property
    def look(self) -> preflight.Preflight:
        """What the script shows before it runs."""
        return preflight.read_job(self._job)

    async def check(self, links: Sequence[AgentLink], others: Sequence[AgentLink] = ()) -> Mapping[str, str]:
        """Require the same torch and code on these hosts as on the `others`; returns their working directories."""
        job = self._job
        if job.preload:
            prepare.check_torch([*others, *links])
        if job.spec.call is not None:
            prepare.check_python(job.spec.call, links)
        folders = [job.spec.cwd] * len(links)
        if job.spec.sync:
            data = await prepare.archive(job) if self._archive is None else self._archive
            self._archive = data if job.spec.restarts else None
            folders = await prepare.sync(job, data, links, self._screen)
        folders = await prepare.check_code(job, links, folders, self.look, self._screen)
        return dict(zip((link.name for link in links), folders, strict=True))

    async def load(self, links: Sequence[AgentLink], folders: Mapping[str, str]) -> None:
        """Start the process that starts ranks on these hosts, with its imports, and send the function."""
        job = self._job
        work = [asyncio.ensure_future(prepare.import_everywhere(job, links, folders, self._screen))]
        if job.spec.call is not None:
            work.append(asyncio.ensure_future(prepare.send_call(job.spec.call, links, self._screen)))
        try:
            await asyncio.gather(*work)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def again(self, link: AgentLink, others: Sequence[AgentLink]) -> None:
        """Prepare a host that was lost, or whose zygote died, as the `others` are; MusterError if it is unfit."""
        prepare.check_slots(self._job, [link], self._screen)
        folders = await self.check([link], others)
        await self.load([link], folders)
        if self._check is not None:
            checking = asyncio.ensure_future(self._check(self._job, [link]))
            try:
                await asyncio.wait([checking], timeout=CHECK_LIMIT)
                if checking.done():
                    checking.result()
            finally:
                checking.cancel()
