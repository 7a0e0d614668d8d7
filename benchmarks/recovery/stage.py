"""Lab hosts with a job in them: starting it, waiting for its ranks, finding its processes."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType

from benchmarks.commands import BIN
from benchmarks.experiment import Failed
from benchmarks.lab_hosts import InHost, bring_up
from benchmarks.recovery import moments
from benchmarks.recovery.moments import Moment

SCRIPT = Path(__file__).with_name("train.py")
PACE = 0.05
"""Seconds that a step takes."""
START_LIMIT = 180.0
END_LIMIT = 60.0


class Stage:
    """A lab for one job after the other: `workers` run ranks or are spare, the controller has a host of its own."""

    def __init__(self, workers: int, folder: Path, *more: Path, slurm: bool = False) -> None:
        self.folder, self.slurm = folder, slurm
        self.lab = bring_up(workers + 1, folder, *more, slurm=slurm)
        # Slurm's own controller is on h1.
        names = self.lab.names
        self.controller, self.workers = (names[0], names[1:]) if slurm else (names[-1], names[:-1])

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lab.stop()

    def muster(self, *options: str, ranks: int = 1, hosts: int | None = None) -> Trial:
        """Start `muster run` with train.py on the first hosts."""
        chosen = self.workers[: hosts or len(self.workers)]
        folder = self.new_folder()
        command = [str(BIN / "muster"), "run", "--no-check", *options]
        script = [str(SCRIPT), str(folder), str(PACE)]
        if self.slurm:
            run = shlex.join([*command, "--nproc", str(ranks), *script])
            places = ["-N", str(len(chosen)), "-w", ",".join(chosen), "--ntasks-per-node", str(ranks)]
            return self.trial(folder, {self.controller: ["salloc", "--quiet", "--no-kill", *places, "sh", "-c", run]})
        places = ["-H", ",".join(f"{host}:{ranks}" for host in chosen)]
        return self.trial(folder, {self.controller: [*command, *places, *script]})

    def trial(self, folder: Path, commands: dict[str, list[str]]) -> Trial:
        """Start one command on each of these hosts, which make up one job."""
        return Trial(self, folder, {host: InHost(self.lab, host, argv, folder) for host, argv in commands.items()})

    def new_folder(self) -> Path:
        """A directory for one job."""
        return Path(mkdtemp(prefix="job-", dir=self.folder))

    def restore(self) -> None:
        """Bring all hosts back to health."""
        for status in self.lab.status():
            if status.state == "frozen":
                self.lab.thaw(status.name)
            if status.state != "up" or status.faults:
                self.lab.reboot(status.name)

    def outside(self, host: str, pid: int) -> int:
        """The process id on this machine of a process inside a host."""
        for candidate, _ in self.lab.processes(host):
            try:
                status = Path(f"/proc/{candidate}/status").read_text()
            except OSError:
                continue
            if status.partition("NSpid:")[2].partition("\n")[0].split()[-1] == str(pid):
                return candidate
        raise Failed(f"{host} has no process {pid}")


class Trial:
    """One running job; leaving the block ends it and heals all hosts."""

    def __init__(self, stage: Stage, folder: Path, jobs: dict[str, InHost]) -> None:
        self.stage, self.folder, self.jobs = stage, folder, jobs
        self.controller = next(iter(jobs.values()))

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        (self.folder / "stop").touch()
        for job in self.jobs.values():
            job.__exit__(*error)
        self.stage.restore()

    @property
    def words(self) -> str:
        """What the first command has printed."""
        return self.controller.words.decode(errors="replace")

    def moments(self) -> list[Moment]:
        """What the ranks have recorded."""
        return moments.read(self.folder)

    def wait_for(self, what: str, check: Callable[[], object], limit: float) -> None:
        """Wait until something is true, while reading all output."""
        deadline = time.monotonic() + limit
        running = dict(self.jobs)
        while not check():
            if time.monotonic() > deadline:
                raise self.controller.failed(f"did not reach this within {limit:.0f} s: {what}")
            for host, job in list(running.items()):
                if not job.read_words(0.02 / len(running)):
                    del running[host]
            if not running and not check():
                raise self.controller.failed(f"ended before this: {what}")

    def read_for(self, seconds: float) -> None:
        """Read all output for a while."""
        deadline = time.monotonic() + seconds
        self.wait_for("this", lambda: time.monotonic() > deadline, seconds + 10)

    def shown(self, host: str) -> int:
        """The newest step of this host that the screen has shown."""
        return max(map(int, re.findall(rf"^\[{host} +\d+\] step (\d+)$", self.words, re.MULTILINE)), default=0)

    def beside(self, argv: list[str]) -> InHost:
        """Another command on the host of the controller."""
        return InHost(self.stage.lab, self.stage.controller, argv, self.folder)

    def wait_for_start(self, world: int) -> None:
        """Wait until the first checkpoint of a world of this size is saved, and some more steps are done."""
        self.wait_for(f"{world} ranks that train", lambda: self.saved(world) >= 2 * world, START_LIMIT)

    def saved(self, world: int) -> int:
        """How often ranks of a world of this size have saved."""
        return sum(moment.what == "save" and moment.world == world for moment in self.moments())

    def last(self, host: str) -> Moment:
        """What the ranks of a host recorded last."""
        return next(moment for moment in reversed(self.moments()) if moment.host == host)

    def host_of(self, rank: int) -> str:
        """Where a rank ran last."""
        return next(moment.host for moment in reversed(self.moments()) if moment.rank == rank)

    def wait_for_recovery(self, since: float, limit: float) -> float:
        """Seconds until a new world has done its first all_reduce."""
        self.wait_for("a new world", lambda: moments.begun(self.moments(), since) is not None, limit)
        done = moments.begun(self.moments(), since)
        assert done is not None
        return done - since

    def finish(self) -> int:
        """Let the ranks end, and return the exit code of the first command."""
        (self.folder / "stop").touch()
        for job in list(self.jobs.values())[1:]:
            job.read_words()
        return self.controller.finish(END_LIMIT)[1]

    def rank_pid(self, host: str) -> int:
        """A rank of this host, as this machine sees it."""
        return self.stage.outside(host, self.last(host).pid)

    def zygote_pid(self, host: str) -> int:
        """What started the ranks of this host."""
        return parent(self.rank_pid(host))

    def agent_pid(self, host: str) -> int:
        """The agent of this host."""
        return parent(self.zygote_pid(host))

    def ssh_pid(self, host: str) -> int:
        """The ssh that connects the controller to this host."""
        for pid, command in self.stage.lab.processes(self.stage.controller):
            if command.split()[0].endswith("ssh") and host in command.split():
                return pid
        raise Failed(f"no ssh to {host} is running")

    def muster_pid(self) -> int:
        """The controller's process."""
        for pid, command in self.stage.lab.processes(self.stage.controller):
            if "muster run" in command and Path(f"/proc/{pid}/comm").read_text().startswith(("muster", "python")):
                return pid
        raise Failed("no controller is running")


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
