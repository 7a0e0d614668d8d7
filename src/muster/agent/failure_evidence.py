"""What the agent reads along so that a failure can be explained: OOM kill counters and the kernel's log."""

from __future__ import annotations

import time

from ..shared import machine
from .kernel_log import KernelLog, gpu_addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..shared.host_state import FailureFacts
    from .guard import Guard

_BETWEEN_KILLS = 10.0
"""Seconds between two readings of the OOM kill counters."""


class FailureEvidence:
    """The counters and the log since the last start of ranks, or of the process that starts them."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._kills: list[tuple[int | None, int | None]] = [(None, None)] * 2
        """The OOM kill counters: some seconds ago, and at the last reading."""
        self._kills_due = float("inf")
        self._kernel_log = KernelLog()

    def begin(self) -> None:
        """Forget what happened so far."""
        self._kills = [machine.memory_kills()] * 2
        self._kills_due = time.monotonic() + _BETWEEN_KILLS
        self._kernel_log.begin()

    def step(self) -> None:
        """Read the counters, if due."""
        if time.monotonic() > self._kills_due:
            # Keep an old reading, because a killed process with many gigabytes takes seconds to exit.
            self._kills = [self._kills[1], machine.memory_kills()]
            self._kills_due = time.monotonic() + _BETWEEN_KILLS

    def kernel_lines(self) -> list[str]:
        """What the kernel has logged about hardware."""
        return self._kernel_log.lines()

    def facts(self, paths: Sequence[str]) -> FailureFacts | None:
        """The state of the host after a failure; None if it could not be determined."""
        from ..rank import post_mortem

        kernel = self.kernel_lines()
        try:
            found = post_mortem.facts(self._kills[0], [*paths])
            return {**found, "kernel": kernel, "gpus": gpu_addresses() if kernel else []}
        except Exception as error:
            self._guard.failed("why a rank failed", error)
            return None
