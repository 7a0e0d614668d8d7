"""Ranks on this machine: time until they work, time until the command ends, and CPU time, compared with torchrun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.commands import muster, need_torchrun, run, times, torchrun
from benchmarks.experiment import Experiment
from benchmarks.table import Row, Sample


class StartUp(Experiment):
    """One script under Muster and under torchrun; the ranks write the time at which they reached a point."""

    def __init__(
        self, script: str, ranks: int, *, first: Row, whole: Row | None = None, cpu: Row | None = None
    ) -> None:
        super().__init__()
        self.script = script
        self.ranks = ranks
        self._by_measure = {"first": first, "whole": whole, "cpu": cpu}
        self.rows = tuple(row for row in self._by_measure.values() if row is not None)

    def open(self) -> None:
        """Check that torchrun is installed."""
        need_torchrun()

    def round(self) -> dict[str, Sample]:
        """Muster, then torchrun."""
        ours, theirs = self._once(muster), self._once(torchrun)
        return {
            row.name: Sample(muster=ours[measure], peer=theirs[measure])
            for measure, row in self._by_measure.items()
            if row is not None
        }

    def _once(self, launcher: Callable[[int, str, Path], list[str | Path]]) -> dict[str, float]:
        folder = self.new_folder("run")
        ended = run(launcher(self.ranks, self.script, folder), folder)
        first = max(times(folder, "first-*", self.ranks)) - ended.begin
        return {"first": first, "whole": ended.seconds, "cpu": ended.cpu}
