"""The run after one with `--keep`: time until its ranks work, the memory that is kept for it, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.commands import BIN, LIMIT, SCRIPTS, environment, muster, need_torchrun, run, times, torchrun
from benchmarks.experiment import Experiment, Failed
from benchmarks.lab_hosts import InHost, bring_up
from benchmarks.table import Row, Sample

MB = 1e6


class SecondRun(Experiment):
    """Ranks on this machine, whose agent and zygote an earlier run has left, and torchrun."""

    def __init__(self, ranks: int, *, first: Row, memory: Row) -> None:
        super().__init__()
        self.ranks = ranks
        self.first = first
        self.memory = memory
        self.rows = (first, memory)

    def open(self) -> None:
        """Check that torchrun is installed, and keep this machine ready."""
        need_torchrun()
        self.env = {**environment(self.folder), "XDG_STATE_HOME": str(self.folder)}
        self.stack.callback(lambda: self._muster("keep", "--end"))
        folder = self.new_folder("first")
        self._muster("run", "--keep", "30m", "--nproc", str(self.ranks), str(SCRIPTS / "first.py"), str(folder))

    def round(self) -> dict[str, Sample]:
        """Muster, then torchrun; the memory is measured between runs."""
        folder = self.new_folder("run")
        same = {"XDG_STATE_HOME": str(self.folder)}
        ended = run(muster(self.ranks, "first.py", folder), folder, env=same)
        if b"reusing" not in (folder / "output").read_bytes():
            raise Failed("the second run did not reuse the kept agent")
        ours = max(times(folder, "first-*", self.ranks)) - ended.begin
        (host,) = json.loads(self._muster("keep", "--json"))
        folder = self.new_folder("run")
        ended = run(torchrun(self.ranks, "first.py", folder), folder)
        theirs = max(times(folder, "first-*", self.ranks)) - ended.begin
        return {
            self.first.name: Sample(muster=ours, peer=theirs),
            self.memory.name: Sample(muster=host["memory"] / MB),
        }

    def _muster(self, *argv: str) -> str:
        done = subprocess.run(
            [BIN / "muster", *argv], env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT
        )
        if done.returncode != 0:
            raise Failed(f"`muster {argv[0]}` failed: {done.stderr[-400:]}")
        return done.stdout


class SecondRunOverSsh(Experiment):
    """Two lab hosts with two ranks each, started from a third one; in each round a first run and a second one."""

    def __init__(self, *, first: Row, killed: Row) -> None:
        super().__init__()
        self.first = first
        self.killed = killed
        self.rows = (first, killed)

    def open(self) -> None:
        """Start the hosts."""
        need_torchrun()
        self.lab = bring_up(3, self.folder)
        self.stack.callback(self.lab.stop)

    def round(self) -> dict[str, Sample]:
        """A run that keeps its hosts, one that reuses them, and the end of the process that keeps them."""
        fresh, kept = self._once("--keep", "30m"), self._once()
        zygotes = [pid for host in ("h2", "h3") for pid, said in self.lab.processes(host) if "muster zygote" in said]
        (keeper,) = (pid for pid, said in self.lab.processes("h1") if said.endswith("muster keep"))
        begin = time.monotonic()
        os.kill(keeper, signal.SIGKILL)
        while any(Path(f"/proc/{pid}/exe").exists() for pid in zygotes):
            if time.monotonic() - begin > LIMIT:
                raise Failed("a zygote outlived the process that kept it")
            time.sleep(0.02)
        return {
            self.first.name: Sample(muster=kept, peer=fresh),
            self.killed.name: Sample(muster=time.monotonic() - begin),
        }

    def _once(self, *options: str) -> float:
        folder = self.new_folder("run")
        argv = [BIN / "muster", "run", *options, "-H", "h2:2,h3:2", SCRIPTS / "first.py", folder]
        with InHost(self.lab, "h1", argv, self.folder) as command:
            _, code = command.finish(LIMIT)
            if code != 0 or (b"reusing" in command.words) == bool(options):
                raise command.failed(f"ended with code {code}")
        return max(times(folder, "first-*", 4)) - command.begin
