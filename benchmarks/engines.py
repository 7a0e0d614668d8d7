"""Jobs in a Slurm allocation, compared with srun and one torchrun per host; and how fast a dead host is reported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.commands import BIN, SCRIPTS, free_port, need_torchrun, times
from benchmarks.experiment import Experiment, Missing
from benchmarks.faults import END_LIMIT, START_LIMIT, Alive
from benchmarks.lab_hosts import InHost, bring_up
from benchmarks.table import Row, Sample
from muster.errors import LabError
from muster.lab.system_programs import find

LIMIT = 180.0

# As in tutorials: the master is the first host of the allocation, the port derives from the job id.
TORCHRUN = (
    'exec srun --nodes=2 --ntasks-per-node=1 --overlap sh -c \'exec "$0" --nnodes 2 --nproc-per-node 2 '
    "--node-rank $SLURM_NODEID --master-addr {master} --master-port {port} {script} {folder}' {torchrun}"
)


class Engines(Experiment):
    """Two ranks on each of two hosts of a Slurm cluster, and one more host from which commands are run."""

    def __init__(self, *, first: Row, power_off: Row, power_off_mpi: Row) -> None:
        super().__init__()
        self.first = first
        self.power_off = power_off
        self.power_off_mpi = power_off_mpi
        self.rows = (first, power_off, power_off_mpi)

    def open(self) -> None:
        """Start the cluster, once for all rounds."""
        need_torchrun()
        try:
            find("mpirun")
        except LabError as error:
            raise Missing(f"not measured: {error.message}") from None
        self.lab = bring_up(3, self.folder, slurm=True)
        self.stack.callback(self.lab.stop)

    def round(self) -> dict[str, Sample]:
        """Muster, then torchrun; then a power failure in a job of each engine."""
        ours = self._until_first(lambda folder: [BIN / "muster", "run", "--nproc", "2", SCRIPTS / "first.py", folder])
        theirs = self._until_first(lambda folder: ["sh", "-c", self._torchrun(folder)])
        slurm = ["salloc", "--quiet", "-N2", "-w", "h2,h3", BIN / "muster", "run", "--nproc", "2"]
        mpi = [BIN / "muster", "run", "--engine", "mpi", "-H", "h2:2,h3:2", "--mpi-args=--allow-run-as-root"]
        return {
            self.first.name: Sample(muster=ours, peer=theirs),
            self.power_off.name: Sample(muster=self._until_named(slurm)),
            self.power_off_mpi.name: Sample(muster=self._until_named(mpi)),
        }

    def _torchrun(self, folder: Path) -> str:
        script = SCRIPTS / "first.py"
        return TORCHRUN.format(master="h2", port=free_port(), script=script, folder=folder, torchrun=BIN / "torchrun")

    def _until_first(self, command: Callable[[Path], list[str | Path]]) -> float:
        folder = self.new_folder("run")
        argv = ["salloc", "--quiet", "-N2", "-w", "h2,h3", *command(folder)]
        with InHost(self.lab, "h1", argv, folder) as job:
            _, code = job.finish(LIMIT)
            if code != 0:
                raise job.failed(f"ended with code {code}")
            return max(times(folder, "first-*", 4)) - job.begin

    def _until_named(self, command: list[str | Path]) -> float:
        folder = self.new_folder("run")
        os.mkfifo(folder / "alive")
        argv = [*command, SCRIPTS / "sit.py", folder]
        with Alive(folder) as alive, InHost(self.lab, "h1", argv, folder) as job:
            alive.wait_for(4, START_LIMIT, job)
            begin = time.time()
            self.lab.power_off("h3")
            try:
                seconds = job.wait_for_words(b"h3", END_LIMIT) - begin
                job.finish(END_LIMIT)
            finally:
                self.lab.reboot("h3")
        return seconds
