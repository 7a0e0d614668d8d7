"""What the events of a job say about one of its ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.shared.events import RankGauges
from muster.shared.reports import Progress

if TYPE_CHECKING:
    from muster.jobs.state import RankPhase, RankState

_LATELY = 10.0
"""Seconds over which a step rate is measured."""

_SHORTEST = 0.5
"""Seconds below which no rate is measured: one step more or less would change it too much."""

_OVERDUE = 2.5
"""Seconds after which a rank that reports no progress has made none; it reports every second."""

_KERNEL_STATES: dict[str, RankPhase] = {"T": "stopped", "t": "stopped", "D": "disk"}
"""Process states of the kernel that are shown to people."""


class RankStatus:
    """What the events say about one rank."""

    def __init__(self, host: str, local_rank: int, gpu: int | None) -> None:
        self.host = host
        self.local_rank = local_rank
        self.gpu = gpu
        self.progress: Progress | None = None
        self.gauges: RankGauges | None = None
        self._counts: deque[tuple[float, int]] = deque()
        """How far it was at which time lately, by the clock of its host."""
        self._heard = 0.0
        """When its last progress arrived, by our clock."""
        self._counts_steps = False
        self.first_collective: float | None = None
        """When it had finished its first collective, by our clock, in seconds since 1970."""
        self.place = ""
        self.moved: float | None = None
        """When it last made progress, by our clock, in seconds since 1970."""
        self.failed_at = ""
        """Where it raised an exception or called sys.exit."""
        self.raised: float | None = None
        """When it raised an exception, by the clock of its host."""
        self.exit_status: int | None = None
        self.ended_by_us = False
        self.started = False
        self.lost = False
        self.is_hung = False

    def on_progress(self, event: Progress) -> None:
        """It reports how far it is."""
        self.progress = event
        self.place = event.get("place") or self.place
        steps = event.get("steps", 0)
        if bool(steps) != self._counts_steps:
            self._counts_steps = bool(steps)
            self._counts.clear()
        # Not by our clock: on a busy machine messages arrive late and then all at once.
        now, self._heard = event["time"], time.monotonic()
        self._counts.append((now, steps or event["done"]))
        while now - self._counts[0][0] > _LATELY and len(self._counts) > 2:
            self._counts.popleft()

    def rate(self) -> float | None:
        """Optimizer steps per second lately, or collectives in a script that has no optimizer."""
        if len(self._counts) < 2:
            return None
        (first, before), (last, count) = self._counts[0], self._counts[-1]
        silent = time.monotonic() - self._heard
        if silent > _LATELY:
            return 0.0
        span = last - first + (silent if silent > _OVERDUE else 0.0)
        return (count - before) / span if span >= _SHORTEST else None

    @property
    def phase(self) -> RankPhase:
        """What it does now, or how it ended."""
        if self.exit_status is not None:
            return "canceled" if self.ended_by_us else "ended" if self.exit_status == 0 else "failed"
        if self.lost:
            return "lost"
        if not self.started:
            return "starting"
        kernel = _KERNEL_STATES.get(self.gauges["state"]) if self.gauges is not None else None
        if kernel is not None:
            return kernel
        if self.is_hung:
            return "hung"
        groups = self.progress.get("groups", {}) if self.progress is not None else {}
        return "waiting" if any(begun > done for begun, done in groups.values()) else "running"

    def state(self, rank: int) -> RankState:
        """All of it, as it is now."""
        from muster.jobs.state import RankState

        status, progress, gauges = self.exit_status, self.progress, self.gauges
        return RankState(
            rank=rank,
            host=self.host,
            local_rank=self.local_rank,
            gpu=self.gpu,
            pid=gauges["pid"] if gauges else None,
            state=self.phase,
            collectives=progress["done"] if progress else 0,
            steps=progress.get("steps", 0) if progress else 0,
            step_rate=None if self.exit_status is not None else self.rate(),
            waiting=progress.get("waiting") if progress else None,
            cpu=gauges["cpu"] if gauges else None,
            memory=gauges["memory"] if gauges else None,
            gpu_memory=gauges["gpu_memory"] if gauges else None,
            place=(self.phase == "failed" and self.failed_at) or self.place,
            moved=self.moved,
            exit_code=None if status is None else 128 - status if status < 0 else status,
        )


def gpu_of(chosen: Sequence[int] | None, visible: str | None, count: int, local_rank: int) -> int | None:
    """The GPU of a rank by the number its driver gives it; None where it has none or it is unknown.

    `chosen` are those of `-H host:0,2`, which count what the host's CUDA_VISIBLE_DEVICES shows, if that is set.
    """
    shown = [part.strip() for part in visible.split(",")] if visible is not None else [str(n) for n in range(count)]
    ours = [shown[gpu] for gpu in chosen if gpu < len(shown)] if chosen else shown
    mine = ours[local_rank] if local_rank < len(ours) else ""
    return int(mine) if mine.isdecimal() and len(mine) < 10 else None
