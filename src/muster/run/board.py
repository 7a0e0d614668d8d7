"""What is known of a running job, gathered from the events of its agents: the source of every view of it."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from muster.job import Job
from muster.plan import Placement, Plan
from muster.run.link import AgentLink
from muster.transports import Engine
from muster.watch.state import GpuState, HostState, JobState, Moment, Phase, RankPhase, RankState, Report

_HISTORY = 900
"""Moments kept for the curves."""

_BETWEEN_MOMENTS = 2.0
"""Seconds between two of them."""

_KERNEL_STATES: dict[str, RankPhase] = {"T": "stopped", "t": "stopped", "D": "disk"}
"""What the kernel says of a process that matters to people."""


class _Rank:
    """What the events have told of one rank."""

    def __init__(self, host: str, local_rank: int, gpu: int | None) -> None:
        self.host = host
        self.local_rank = local_rank
        self.gpu = gpu
        self.progress: Mapping[str, Any] = {}
        self.gauges: Mapping[str, Any] = {}
        self.rate: float | None = None
        self.place = ""
        self.exit_status: int | None = None
        self.lost = False

    def on_progress(self, event: Mapping[str, Any]) -> None:
        before, self.progress = self.progress, event
        between = event["time"] - before["time"] if before else 0.0
        if between > 0:
            made = self.count(event) - self.count(before)
            self.rate = made / between if before else None

    @staticmethod
    def count(event: Mapping[str, Any]) -> int:
        """Optimiser steps, or collectives in a script that has no optimiser."""
        return event.get("steps") or event.get("done", 0)

    @property
    def phase(self) -> RankPhase:
        if self.exit_status is not None:
            return "ended" if self.exit_status == 0 else "failed"
        if self.lost:
            return "lost"
        if not self.progress and not self.gauges:
            return "starting"
        kernel = _KERNEL_STATES.get(self.gauges.get("state", ""))
        if kernel is not None:
            return kernel
        groups = self.progress.get("groups", {})
        return "waiting" if any(begun > done for begun, done in groups.values()) else "running"

    def state(self, rank: int) -> RankState:
        status = self.exit_status
        return RankState(
            rank=rank,
            host=self.host,
            local_rank=self.local_rank,
            gpu=self.gpu,
            pid=self.gauges.get("pid"),
            state=self.phase,
            collectives=self.progress.get("done", 0),
            steps=self.progress.get("steps", 0),
            step_rate=self.rate,
            waiting=self.progress.get("waiting"),
            cpu=self.gauges.get("cpu"),
            memory=self.gauges.get("memory"),
            gpu_memory=self.gauges.get("gpu_memory"),
            place=self.place,
            exit_code=None if status is None else 128 - status if status < 0 else status,
        )


def _gpu(placement: Placement, local_rank: int) -> int | None:
    """The GPU of a rank by its number on the host, where it was chosen or is plain."""
    gpus = placement.host.gpus
    return gpus[local_rank] if gpus else None


class Board:
    """The state of one job."""

    def __init__(self, job: Job, engine: Engine, begin: float) -> None:
        self.job = job
        self.engine = engine.name
        self.begin = begin
        self.phase: Phase = "connecting"
        self.sentence = ""
        self.exit_code: int | None = None
        self.reports: list[Report] = []
        self._attempt = 0
        self._hosts = {seat.name: HostState(name=seat.name) for seat in engine.seats}
        self._ranks: dict[int, _Rank] = {}
        self._history: deque[Moment] = deque(maxlen=_HISTORY)

    def begin_attempt(self, plan: Plan, number: int) -> None:
        """All ranks are new."""
        self.phase, self._attempt = "running", number
        self._ranks = {
            rank: _Rank(placement.name, local, _gpu(placement, local))
            for placement in plan.placements
            for local, rank in enumerate(placement.ranks)
        }

    def on_event(self, link: AgentLink, event: Mapping[str, Any]) -> None:
        """Take one event of a host."""
        kind = event["t"]
        rank = self._ranks.get(event.get("rank", -1))
        if kind == "progress" and rank is not None:
            rank.on_progress(event)
        elif kind == "exit" and rank is not None:
            rank.exit_status = event["status"]
        elif kind == "gauges":
            self._on_gauges(link.name, event)
        elif kind == "silent":
            self._set_host(link.name, "silent")
        elif kind == "heard":
            self._set_host(link.name, "up")
        elif kind == "lost":
            self._set_host(link.name, "lost")
            for rank in self._ranks.values():
                rank.lost = rank.lost or rank.host == link.name

    def connected(self, links: Sequence[AgentLink]) -> None:
        """All hosts are up."""
        self.phase = "preparing"
        for link in links:
            self._hosts[link.name] = replace(self._hosts[link.name], state="up", cpus=link.facts["cpus"])

    def _set_host(self, name: str, state: Literal["up", "silent", "lost"]) -> None:
        self._hosts[name] = replace(self._hosts[name], state=state)

    def _on_gauges(self, name: str, event: Mapping[str, Any]) -> None:
        told = dict(event["host"])
        gpus = tuple(GpuState(**gpu) for gpu in told.pop("gpus", ()))
        self._hosts[name] = replace(self._hosts[name], gpus=gpus, **told)
        for number, gauges in event["ranks"].items():
            if int(number) in self._ranks:
                self._ranks[int(number)].gauges = gauges

    def tick(self) -> None:
        """Keep the curves; to be called about every second."""
        now = time.time()
        if self._ranks and (not self._history or now - self._history[-1].time >= _BETWEEN_MOMENTS):
            states = [rank.state(number) for number, rank in self._ranks.items()]
            rates = [state.step_rate for state in states if state.step_rate is not None]
            waiting = {state.rank: state.waiting for state in states if state.waiting is not None}
            self._history.append(Moment(time=now, step_rate=min(rates, default=None), waiting=waiting))

    def state(self) -> JobState:
        """All of it, as it is now."""
        return JobState(
            id=self.job.id,
            command=self.job.command,
            cwd=self.job.cwd,
            engine=self.engine,
            begin=self.begin,
            now=time.time(),
            phase=self.phase,
            controller=os.getpid(),
            host=socket.gethostname(),
            attempt=self._attempt,
            world_size=len(self._ranks),
            hosts=tuple(self._hosts.values()),
            ranks=tuple(rank.state(number) for number, rank in self._ranks.items()),
            history=tuple(self._history),
            reports=tuple(self.reports),
            exit_code=self.exit_code,
            sentence=self.sentence,
        )
