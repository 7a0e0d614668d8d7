"""Startup time of the command itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.commands import BIN, environment
from benchmarks.experiment import Experiment, Failed
from benchmarks.reaper import has_ended
from benchmarks.table import Row, Sample


class HelpText(Experiment):
    """`muster --help` compared with the minimum of an interpreter."""

    repeats = 4

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row
        self.rows = (row,)

    def open(self) -> None:
        """Run both once, so that the bytecode is written and the files are cached."""
        self.round()

    def round(self) -> dict[str, Sample]:
        """Muster, then plain Python."""
        ours = self._milliseconds([str(BIN / "muster"), "--help"])
        return {self.row.name: Sample(muster=ours, peer=self._milliseconds([sys.executable, "-c", "pass"]))}

    def _milliseconds(self, argv: list[str]) -> float:
        begin = time.perf_counter()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment(self.folder)
        )
        try:
            ended = has_ended(process.pid, 60)
            seconds = time.perf_counter() - begin
        finally:
            process.kill()
            code = process.wait()
        if not ended or code != os.EX_OK:
            raise Failed(f"`{' '.join(argv)}` ended with code {code} after {seconds:.1f} s")
        return seconds * 1000
