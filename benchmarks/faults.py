"""Failures on lab hosts: time until every rank is gone, and until a lost host is reported on the screen."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.commands import BIN, SCRIPTS, need_torchrun, times
from benchmarks.experiment import Experiment, Failed
from benchmarks.lab_hosts import InHost, bring_up
from benchmarks.table import Row, Sample

START_LIMIT = 120.0
END_LIMIT = 30.0


class Faults(Experiment):
    """A job with two idle ranks on each host, started from a separate host."""

    def __init__(self, hosts: int, *, failure: Row, cut: Row, power_off: Row) -> None:
        super().__init__()
        self.hosts = hosts
        self.failure = failure
        self.cut = cut
        self.power_off = power_off
        self.rows = (failure, cut, power_off)

    def open(self) -> None:
        """Start the hosts, and one more for the controller."""
        need_torchrun()
        self.lab = bring_up(self.hosts + 1, self.folder)
        self.stack.callback(self.lab.stop)
        *self.workers, self.controller = self.lab.names
        self.victim = self.workers[-1]

    def round(self) -> dict[str, Sample]:
        """All three faults, each in a separate job."""
        return {
            self.failure.name: Sample(muster=self._until_all_are_gone()),
            self.cut.name: Sample(muster=self._until_named(self.lab.cut)),
            self.power_off.name: Sample(muster=self._until_named(self.lab.power_off)),
        }

    def _until_all_are_gone(self) -> float:
        folder = self._run_folder()
        with Alive(folder) as alive, self._job(folder, "--grace", "0") as job:
            ranks = 2 * self.hosts
            alive.wait_for(ranks, START_LIMIT, job)
            (folder / "go.new").write_text(str(ranks - 1))
            (folder / "go.new").rename(folder / "go")
            gone = alive.gone(END_LIMIT)
            if job.finish(END_LIMIT)[1] != 1:
                raise job.failed("did not exit with the code of the rank that failed")
        return gone - times(folder, "failed", 1)[0]

    def _until_named(self, fault: Callable[[str], None]) -> float:
        folder = self._run_folder()
        with Alive(folder) as alive, self._job(folder) as job:
            alive.wait_for(2 * self.hosts, START_LIMIT, job)
            begin = time.time()
            fault(self.victim)
            try:
                seconds = job.wait_for_words(self.victim.encode(), END_LIMIT) - begin
                job.finish(END_LIMIT)
            finally:
                self.lab.reboot(self.victim)
        return seconds

    def _job(self, folder: Path, *options: str) -> InHost:
        names = ",".join(f"{name}:2" for name in self.workers)
        argv = [BIN / "muster", "run", *options, "-H", names, SCRIPTS / "sit.py", folder]
        return InHost(self.lab, self.controller, argv, folder)

    def _run_folder(self) -> Path:
        folder = self.new_folder("run")
        os.mkfifo(folder / "alive")
        return folder


class Alive:
    """The FIFO that every rank holds open, whose end marks the moment when the last of them is gone."""

    def __init__(self, folder: Path) -> None:
        self._reader = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)

    def __enter__(self) -> Alive:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._reader)

    def wait_for(self, ranks: int, limit: float, job: InHost) -> None:
        """Wait until this many ranks have reported that they are idle, while reading the job's output."""
        deadline, seen = time.monotonic() + limit, 0
        while seen < ranks:
            job.read_words()
            select.select([self._reader], [], [], 0.05)
            try:
                seen += len(os.read(self._reader, 64))
            except BlockingIOError:
                pass
            if time.monotonic() > deadline:
                raise job.failed(f"had {seen} of {ranks} ranks up after {limit:.0f} s")

    def gone(self, limit: float) -> float:
        """Wait for the end of the last rank, and return its time."""
        if not select.select([self._reader], [], [], limit)[0]:
            raise Failed(f"ranks were still alive {limit:.0f} s after the failure")
        return time.time()
