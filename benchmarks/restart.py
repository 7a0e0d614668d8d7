"""Time from a failure until all ranks work again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import muster, need_torchrun, run, times, torchrun
from benchmarks.experiment import Experiment
from benchmarks.table import Row, Sample


class Restart(Experiment):
    """Time from the failure of one rank to the last rank's first all_reduce of the next attempt.

    By default, torchrun 2.13 reuses the store of the first attempt for the second, and gloo then fails because of stale
    keys (3 of 3 times with 8 ranks, placed statically). With --standalone and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 each
    attempt has its own store and the restart works, so that is the peer.
    """

    def __init__(self, ranks: int, row: Row) -> None:
        super().__init__()
        self.ranks = ranks
        self.row = row
        self.rows = (row,)

    def open(self) -> None:
        """Check that torchrun is installed."""
        need_torchrun()

    def round(self) -> dict[str, Sample]:
        """Muster, then torchrun."""
        folder = self.new_folder("run")
        ours = self._once(muster(self.ranks, "restart.py", folder, "--restarts", "1"), folder)
        folder = self.new_folder("run")
        theirs = self._once(torchrun(self.ranks, "restart.py", folder, "--standalone", "--max-restarts", "1"), folder)
        return {self.row.name: Sample(muster=ours, peer=theirs)}

    def _once(self, argv: Sequence[str | Path], folder: Path) -> float:
        run(argv, folder, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        return max(times(folder, "attempt-1-*", self.ranks)) - times(folder, "failed", 1)[0]
