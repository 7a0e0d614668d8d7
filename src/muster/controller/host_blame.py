"""Takes bad hosts out of a job after a failure, and keeps what was learned about them for later jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from muster.controller.attempt import Attempt
from muster.controller.diagnosis.verdict import Verdict
from muster.engines.engine import Launch
from muster.hosts import Host
from muster.job import Job

if TYPE_CHECKING:
    from muster.controller.diagnosis.bad_host import BadHost
    from muster.jobs.host_history import Incident, Kind

_SAVE_LIMIT = 5.0
"""Seconds to wait at the end for the history to be written."""


class Hosts(Protocol):
    """What the blame needs of the recovery of a job."""

    def can_replace(self, host: str, *, shrink: bool = True) -> bool:
        """Whether another attempt could run without this host; unless `shrink`, on as many hosts."""
        ...

    def retire(self, host: str, why: str) -> None:
        """Run no ranks on this host in later attempts."""
        ...

    def restore(self, host: str) -> None:
        """Use a retired host again."""
        ...

    @property
    def stuck(self) -> Collection[str]:
        """The hosts with a process of the last attempt that could not be killed."""
        ...


class HostBlame:
    """Judges the hosts of a job whenever an attempt has failed."""

    def __init__(
        self,
        job: Job,
        launch: Launch,
        recovery: Hosts,
        warn: Callable[[str], None],
        guard: Callable[[str], AbstractContextManager[None]],
        ask_gpus: Callable[[Collection[str]], Awaitable[Mapping[str, str]]],
    ) -> None:
        """`ask_gpus` is called with names of hosts and returns what is wrong with the GPUs of some of them."""
        self._job = job
        self._recovery = recovery
        self._warn = warn
        self._guard = guard
        self._ask_gpus = ask_gpus
        self._hosts = {agent.name: agent.host for agent in launch.agents}
        self._keeps = not job.spec.lab and launch.name != "local"
        """Whether later jobs can use these hosts and could choose others."""
        self._remote = {agent.name for agent in launch.agents if not agent.here}
        self._earlier: list[Verdict] = []
        self._suspects: list[BadHost] = []
        """Hosts that were replaced because their ranks failed first twice, until it is known whether that helped."""
        self._cleared: set[str] = set()
        """Failures that happened on several hosts, so that no host is suspected because of them."""
        self._last: BadHost | None = None
        self._writing: set[asyncio.Future[None]] = set()

    async def after_failure(self, attempt: Attempt, verdict: Verdict) -> None:
        """Find the host to blame for a failed attempt, and replace it if another can take its place."""
        with self._guard("which hosts are bad"):
            await self._judge(attempt, verdict)

    async def _judge(self, attempt: Attempt, verdict: Verdict) -> None:
        from muster.controller.diagnosis.bad_host import asks_gpus, bad_host_of  # most jobs do not fail

        self._clear_suspects(verdict)
        self._note_losses(attempt)
        stuck = self._recovery.stuck
        bad = bad_host_of(verdict, attempt.ends, self._earlier, stuck=stuck)
        if (bad is None or not bad.is_proven) and asks_gpus(verdict) and not attempt.losses:
            gpus = await self._ask_gpus([place.name for place in attempt.plan.placements])
            bad = bad_host_of(verdict, attempt.ends, self._earlier, stuck=stuck, gpus=gpus)
        self._last = bad
        self._earlier.append(verdict)
        if bad is None or self._cleared.intersection(bad.signatures):
            return
        if bad.is_proven:
            self._keep(bad)
        if not self._job.spec.restarts:
            return
        # A suspicion is not worth a smaller world; and without the ranks of the host, the failure of a rank would not
        # return, whatever its cause.
        if self._recovery.can_replace(bad.host, shrink=bad.is_proven):
            self._recovery.retire(bad.host, bad.why)
            self._warn(f"{bad.host} runs no more ranks of this job: {bad.why}")
            if not bad.is_proven:
                self._suspects.append(bad)
        elif bad.is_proven:
            self._warn(f"{bad.host} is used again, because no host can replace it: {bad.why}")

    def _clear_suspects(self, verdict: Verdict) -> None:
        from muster.controller.diagnosis.bad_host import is_cleared

        for suspect in [one for one in self._suspects if is_cleared(one, verdict)]:
            self._suspects.remove(suspect)
            self._cleared.update(suspect.signatures)
            elsewhere = verdict.first.host if verdict.first is not None else "another host"
            self._warn(f"{suspect.host} is not to blame, because the same failure happened on {elsewhere}")
            self._recovery.restore(suspect.host)

    def _note_losses(self, attempt: Attempt) -> None:
        """Keep losses, unless no other host can still be reached: then it may be the network of this machine."""
        lost = {loss.host: loss.why for loss in attempt.losses if not loss.is_up}
        if any(place.name in self._remote and place.name not in lost for place in attempt.plan.placements):
            for host, why in lost.items():
                self._remember(host, "lost", why)

    def add_to(self, verdict: Verdict) -> Verdict:
        """The verdict of the job, with a note about what is kept; a job that succeeded confirms its suspicions."""
        if verdict.ok:
            for suspect in self._suspects:
                self._keep(suspect)
        elif self._last is not None and self._last.is_proven and self._keeps and len(self._hosts) > 1:
            host = self._last.host
            note = f"Muster remembers {host} as bad for later jobs: use --avoid-bad to leave it out"
            return replace(verdict, notes=(*verdict.notes, note))
        return verdict

    async def save(self) -> None:
        """Wait until everything is written."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=_SAVE_LIMIT)

    def _keep(self, bad: BadHost) -> None:
        self._remember(bad.host, bad.kind, bad.why)

    def _remember(self, name: str, kind: Kind, what: str) -> None:
        from muster.jobs.host_history import Incident

        host = self._hosts.get(name)
        if host is not None and self._keeps:
            incident = Incident(time=time.time(), kind=kind, what=what, job=self._job.id)
            # In a thread, because home directories are often on a file server.
            task = asyncio.ensure_future(asyncio.to_thread(self._write, host, incident))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def _write(self, host: Host, incident: Incident) -> None:
        from muster.jobs.host_history import remember

        try:
            remember(host, incident)
        except OSError as error:
            self._warn(f"could not keep what was learned about {host.name} ({error.strerror or error})")
