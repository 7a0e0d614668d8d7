"""Many hosts over ssh with one trivial process each, compared with mpirun on the same hosts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.commands import BIN, SCRIPTS
from benchmarks.experiment import Experiment
from benchmarks.lab_hosts import InHost, bring_up
from benchmarks.table import Row, Sample

LIMIT = 120.0


class ManyHosts(Experiment):
    """The whole command, run on the first host, which both launchers use locally; they reach the others by ssh.

    The process is a Python script that imports nothing. mpirun starts it with the same interpreter; the samples also
    have its time for `true`, which Muster cannot start.
    """

    def __init__(self, many: int, few: int, *, growth: Row, beside_mpirun: Row) -> None:
        super().__init__()
        self.many = many
        self.few = few
        self.growth = growth
        self.beside_mpirun = beside_mpirun
        self.rows = (growth, beside_mpirun)

    def open(self) -> None:
        """Start the hosts, once for all rounds."""
        self.mpirun = shutil.which("mpirun")
        if self.mpirun is None:
            self.not_measured[self.beside_mpirun.name] = "not measured: mpirun is not installed"
        self.lab = bring_up(self.many, self.folder)
        self.stack.callback(self.lab.stop)

    def round(self) -> dict[str, Sample]:
        """Muster and mpirun on many hosts, then both on few."""
        script = [sys.executable, SCRIPTS / "trivial.py"]
        many, mpi_many = self._muster(self.many), self._mpirun(self.many, script)
        few, mpi_few = self._muster(self.few), self._mpirun(self.few, script)
        samples = {self.growth.name: Sample(muster=many, peer=few)}
        if mpi_many is not None and mpi_few is not None:
            nothing = self._mpirun(self.many, ["true"])
            also = {f"mpirun_{self.few}": mpi_few, "mpirun_true": nothing or 0.0}
            samples[self.beside_mpirun.name] = Sample(muster=many, peer=mpi_many, also=also)
        return samples

    def _muster(self, hosts: int) -> float:
        names = ",".join(f"{name}:1" for name in self.lab.names[:hosts])
        return self._once([BIN / "muster", "run", "--no-zygote", "-H", names, SCRIPTS / "trivial.py"], said=hosts)

    def _mpirun(self, hosts: int, command: list[str | Path]) -> float | None:
        if self.mpirun is None:
            return None
        names = ",".join(self.lab.names[:hosts])
        speaking = 0 if command == ["true"] else hosts
        return self._once([self.mpirun, "--allow-run-as-root", "-H", names, *command], said=speaking)

    def _once(self, argv: list[str | Path], said: int) -> float:
        with InHost(self.lab, self.lab.names[0], argv, self.folder) as command:
            seconds, code = command.finish(LIMIT)
            if code != 0 or command.words.count(b"this process ran") != said:
                raise command.failed(f"ended with code {code}, and not all {said} processes printed their line")
        return seconds
