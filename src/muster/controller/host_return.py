"""Brings lost hosts back in the background: connects to them again with growing pauses, and prepares them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from muster.controller.agents import CONNECT_LIMIT, Agents
from muster.controller.debug_log import internal_error
from muster.controller.links.link import AgentLink
from muster.controller.links.piped import LOGINS_AT_ONCE
from muster.controller.monitor.job_status import JobStatus
from muster.controller.preparation import Preparation
from muster.errors import MusterError
from muster.output.screen import Screen

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between two tries to reach a lost host: at first, and at most; each pause is twice the one before."""

STEADY_AFTER = 600.0
"""A host that returns and is lost again sooner than this, in seconds, waits twice as long before its first try."""

_CLOSE_LIMIT = 3.0
"""Seconds for the agent of a host that is not used to exit."""

_log = logging.getLogger("muster.controller")


class HostReturns:
    """The hosts that are expected to return; `on_ready` is called with the name of each one that can run ranks."""

    def __init__(
        self,
        agents: Agents,
        preparation: Preparation,
        status: JobStatus,
        screen: Screen,
        on_ready: Callable[[str], None],
    ) -> None:
        self._agents = agents
        self._preparation = preparation
        self._status = status
        self._screen = screen
        self._on_ready = on_ready
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._logins = asyncio.Semaphore(LOGINS_AT_ONCE)
        self._returned: dict[str, tuple[float, float]] = {}
        """When each host returned the last time, by the monotonic clock, and the pause before its first try then."""
        self._is_closed = False
        self._said: set[tuple[str, str]] = set()
        """Problems of hosts that have been reported."""
        self.repairing: set[str] = set()
        """Hosts that get a new zygote, while their agent is up."""

    def expect(self, name: str) -> None:
        """Try to reach a lost host again until it can run ranks."""
        self._begin(name, self._bring_back(name))

    def is_expected(self, name: str) -> bool:
        """Whether this host is being brought back, so nobody else may prepare it."""
        task = self._tasks.get(name)
        return task is not None and not task.done()

    def repair(self, link: AgentLink) -> None:
        """Prepare a host again whose agent is up; if that fails, it gets a new agent too."""
        self.repairing.add(link.name)
        self._begin(link.name, self._repair(link))

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if self._is_closed or self.is_expected(name):
            work.close()
            return
        task = self._tasks[name] = asyncio.ensure_future(work)
        task.add_done_callback(lambda task: self._on_done(name, task))

    def _on_done(self, name: str, task: asyncio.Task[None]) -> None:
        """Report an internal error; the job continues without the host."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._screen.warning(f"{name} is not used again: {internal_error(error)}")

    async def _repair(self, link: AgentLink) -> None:
        try:
            await self._prepare(link)
            return
        except MusterError as error:
            self._report(link.name, error)
        finally:
            self.repairing.discard(link.name)
        await link.close(limit=_CLOSE_LIMIT)
        await self._bring_back(link.name)

    async def _bring_back(self, name: str) -> None:
        pause = first = self._pause(name)
        while True:
            old = self._agents.leader(name)
            comes_by_itself = self._agents.comes_by_itself(name)
            await asyncio.sleep(0.0 if comes_by_itself else pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                if comes_by_itself:
                    link = await self._agents.reconnect(name, self._agents.launch.pull_limit)
                else:
                    async with self._logins:
                        link = await self._agents.reconnect(name, CONNECT_LIMIT)
            except MusterError as error:
                _log.info("%s does not answer yet: %s", name, error.message)
                continue
            try:
                self._status.set_host(name, phase="returning")
                await self._prepare(link)
                self._returned[name] = (time.monotonic(), first)
                return
            except MusterError as error:
                self._report(name, error)
                self._status.set_host(name, phase="lost", why=error.message)
                self._agents.put(old)
            await link.close(limit=_CLOSE_LIMIT)

    def _pause(self, name: str) -> float:
        """Seconds before the first try: a host that comes and goes must not restart the job all the time."""
        since, pause = self._returned.get(name, (0.0, 0.0))
        if pause and time.monotonic() - since < STEADY_AFTER:
            return min(2 * pause, LONGEST_PAUSE)
        return FIRST_PAUSE

    async def _prepare(self, link: AgentLink) -> None:
        others = [other for other in self._agents.usable if other is not link]
        await self._preparation.again(link, others)
        self._on_ready(link.name)

    def _report(self, name: str, error: MusterError) -> None:
        """Report once why a host that answers cannot be used."""
        _log.info("%s is not usable yet: %s", name, error.message)
        if (name, error.message) not in self._said:
            self._said.add((name, error.message))
            self._screen.warning(f"{name} answers again, but it cannot be used yet: {error.message}")

    async def close(self) -> None:
        """Stop trying, also for hosts that are lost later."""
        self._is_closed = True
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
