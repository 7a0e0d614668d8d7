"""What is known of one host of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from muster.shared.events import HostGauges, Up

if TYPE_CHECKING:
    from muster.jobs.state import HostPhase, HostRole, HostState, HostUse


class HostStatus:
    """The connection to one host, what it is used for, and what it measures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase: HostPhase = "connecting"
        self.role: HostRole = ""
        self.why = ""
        self.deadline: float | None = None
        self.facts: Up | None = None
        self.gauges: HostGauges = {}

    def enter(self, phase: HostPhase, why: str | None, deadline: float | None) -> None:
        """The host is in another phase; `why` and `deadline` are those of this phase, and None keeps them in it."""
        is_new = phase != self.phase
        self.phase = phase
        self.why = why if why is not None else "" if is_new else self.why
        self.deadline = deadline if deadline is not None else None if is_new else self.deadline
        if phase in ("lost", "bad"):
            self.role, self.gauges = "", {}

    def on_change(self, phase: HostPhase, why: str) -> None:
        """Its link says that it is up, silent or lost; a bad host stays bad, and a draining one until it is lost."""
        if self.phase != "bad" and (self.phase != "draining" or phase == "lost"):
            self.enter(phase, why, None)

    def state(self) -> HostState:
        """All of it, as it is now."""
        from muster.jobs.state import GpuState, HostState

        known = HostState(
            name=self.name,
            state=self.phase,
            role=self.role,
            why=self.why,
            deadline=self.deadline,
            cpus=self.facts["cpus"] if self.facts is not None else 0,
        )
        gpus = tuple(GpuState(**gpu) for gpu in self.gauges.get("gpus", ()))
        return replace(known, **{**self.gauges, "gpus": gpus})

    def use(self) -> HostUse:
        """What it uses now, for the charts."""
        gauges = self.gauges
        gpus = [use for gpu in gauges.get("gpus", ()) if (use := gpu.get("use")) is not None]
        total = gauges.get("memory_total")
        received, sent = gauges.get("network_in"), gauges.get("network_out")
        return (
            _rounded(gauges.get("cpu_use")),
            _rounded(gauges.get("memory_used", 0) / total if total else None),
            _rounded(sum(gpus) / len(gpus) if gpus else None),
            None if received is None else round(received),
            None if sent is None else round(sent),
        )


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)
