"""The hosts of one lane of rounds: a job in them, its processes, and what is left of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmarks.chaos.observation import Verdict
from benchmarks.chaos.plan import GRACE, LEASE, PACE, Engine, Plan
from benchmarks.chaos.warm_host import Started, WarmHost
from benchmarks.commands import BIN, environment
from benchmarks.experiment import Failed
from muster.lab import Lab
from muster.lab.podman_service import IMAGE, volumes

SCRIPT = Path(__file__).with_name("rank.py")
HOSTS = 4
"""Hosts of a lab; the first one runs the controllers."""
START_LIMIT = 90.0
READ_LIMIT = 60.0
POLL = 0.1
OTHERS = ("scratch-", ".filled", "ompi.")
"""Files that are not of Muster: those of the script, of the lab, and of a killed mpirun."""


class Running:
    """One `muster run` inside a lab host."""

    def __init__(self, lab: Lab, started: Started, folder: Path) -> None:
        self.lab, self.started, self.folder = lab, started, folder

    @property
    def output(self) -> str:
        """What it has printed."""
        file = self.folder / "output"  # a controller that was killed at once has none
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def code(self) -> int | None:
        """Its exit code, as a shell shows it; None while it runs."""
        code = self.started.code
        return code if code is None or code >= 0 else 128 - code

    def said(self, rank: int) -> tuple[float, ...]:
        """When a rank had printed each of its lines."""
        try:
            lines = (self.folder / f"said-{rank}").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return ()
        return tuple(float(line.split()[1]) for line in lines if line.endswith("\n") and not line.startswith("end"))

    def has_finished(self, rank: int) -> bool:
        """Whether the script of a rank came to its end."""
        file = self.folder / f"said-{rank}"
        return file.exists() and "end" in file.read_text()

    def stop(self) -> None:
        """Let the ranks end."""
        (self.folder / "stop").touch()

    def has_begun(self, world: int) -> bool:
        """Whether every rank has printed a line."""
        try:
            return all((self.folder / f"said-{rank}").stat().st_size for rank in range(world))
        except FileNotFoundError:
            return False

    def wait_for_ranks(self, world: int) -> bool:
        """Wait until every rank has printed a line; False if the job ended before."""
        deadline = time.monotonic() + START_LIMIT
        while not self.has_begun(world):
            if self.code is not None:
                return False
            if time.monotonic() > deadline:
                raise Failed(f"the ranks did not start within {START_LIMIT:.0f} s: {self.output[-500:]}")
            time.sleep(POLL)
        return True

    def wait(self, until: float) -> int | None:
        """Wait for its end."""
        while self.code is None and time.time() < until:
            time.sleep(POLL)
        return self.code

    def rank_pids(self, world: int) -> dict[int, int]:
        """The processes of the ranks on this machine, found by the file that each keeps open."""
        wanted = {_identity(os.stat(self.folder / f"said-{rank}")): rank for rank in range(world)}
        found: dict[int, int] = {}
        for host in self.lab.names:
            for pid, _ in self.lab.processes(host):
                for name in _entries(f"/proc/{pid}/fd"):
                    try:
                        key = _identity(os.stat(f"/proc/{pid}/fd/{name}"))
                    except OSError:
                        continue
                    if key in wanted:
                        found[wanted[key]] = pid
        return found


class Scene:
    """A lab for one round after the other."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        code = Path(__file__).parent
        self.lab = Lab(HOSTS, bind=(folder, code), slurm=engine == "slurm", podman=engine == "container")
        self.lab.start()
        self.controller = self.lab.names[0]
        self.warm = WarmHost(self.lab, self.controller, environment(folder))
        self.clean = self.files(self.lab.names)

    def close(self) -> None:
        """Stop the lab."""
        self.lab.stop()
        self.warm.close()

    def start(self, plan: Plan, *, second: bool = False) -> Running:
        """Start the job of a plan, or the other job next to it."""
        folder = Path(mkdtemp(prefix="second-" if second else "job-", dir=self.folder))
        folder.chmod(0o755)
        how = ["run", "--no-check", "--grace", f"{GRACE:g}", "--lost-after", f"{LEASE:g}"]
        how += [] if plan.zygote and not second else ["--no-zygote"]
        failure = ["-1", "0"] if second or not plan.failure else [str(number) for number in plan.failure]
        flags = [name for name in ("children", "torch", "scratch") if getattr(plan, name) and not second]
        lines = 1 if second else plan.lines
        hungry = -1 if second or plan.hungry is None else plan.hungry
        script = [str(SCRIPT), str(folder), str(lines), str(PACE), *failure, str(hungry), ",".join(flags) or "-"]
        argv = [*how, *_where(plan, folder, second=second), *script]
        command = _in_slurm(plan, argv) if plan.engine == "slurm" and not second else None
        started = self.warm.start([command or argv], folder, environment(folder), become=bool(command))
        return Running(self.lab, started, folder)

    def pids(self) -> set[int]:
        """Every process in the lab except the services of its hosts."""
        return {pid for host in self.lab.names for pid, _ in self.lab.processes(host)}

    def left(self, spared: set[int]) -> list[str]:
        """The processes of the job, with their hosts."""
        return [
            f"{host} {pid} {command[:80]}"
            for host in self.lab.names
            for pid, command in self.lab.processes(host)
            if pid not in spared and pid != self.warm.pid
        ]

    def controller_pid(self, job: Running, plan: Plan) -> int:
        """The controller of a job."""
        if plan.engine != "slurm":
            return job.started.pid
        return _find_below(job.started.pid, lambda words: "run" in words and words[1].endswith("/muster"))

    def child_pid(self, controller: int, program: str, host: str = "") -> int:
        """The ssh client of a host, srun or mpirun, below a controller."""
        return _find_below(controller, lambda words: words[0].endswith(program) and (not host or host in words))

    def service_pid(self, host: str, name: str) -> int:
        """A daemon of a host; LookupError if it does not run."""
        entering = self.lab.enter_argv(host)
        init = next(word.partition("=")[2] for word in entering if word.startswith("--target="))
        for entry in _entries("/proc"):
            try:
                if Path(f"/proc/{entry}/comm").read_text().strip() != name:
                    continue
                if os.readlink(f"/proc/{entry}/ns/pid") == os.readlink(f"/proc/{init}/ns/pid"):
                    return int(entry)
            except OSError:
                continue
        raise LookupError

    def read_job(self, job: Running, world: int) -> tuple[Verdict | None, tuple[tuple[int, ...], ...], str]:
        """The verdict, the lines in the logs, and what is wrong with the job directory."""
        nothing = ((),) * world
        folders = list((job.folder / "muster" / "jobs").glob("*"))
        if not folders:
            return None, nothing, ""
        name = folders[0].name
        commands = [["ps", "--json"], ["show", name], ["logs", name]]
        started = self.warm.start(commands, job.folder, environment(job.folder), out="answer")
        deadline = time.monotonic() + READ_LIMIT
        while started.code is None and time.monotonic() < deadline:
            time.sleep(POLL / 2)
        answers = [
            file.read_text(errors="replace") if (file := job.folder / f"answer{suffix}").exists() else ""
            for suffix in ("", ".1", ".2")
        ]
        if started.code != 0 or any("internal error" in answer for answer in answers):
            return None, nothing, f"exit code {started.code}: {' / '.join(answer[-300:] for answer in answers)}"
        try:
            state: dict[str, Any] = json.loads(answers[0])[0]
        except (ValueError, IndexError):
            return None, nothing, f"`muster ps --json` printed {answers[0][:200]!r}"
        return _verdict(state), _numbers(answers[2], world), ""

    def files(self, hosts: Sequence[str]) -> dict[str, set[str]]:
        """What is in the temporary directories of the hosts that run."""
        running = {status.name for status in self.lab.status() if status.state == "up"}
        found: dict[str, set[str]] = {}
        for host in hosts:
            if host in running:
                done = self.lab.run(host, ["ls", "-A", "/tmp", "/dev/shm"], timeout=30)
                found[host] = {name for name in done.stdout.split() if not name.startswith(OTHERS)}
        return found

    def restore(self, broken: Sequence[str]) -> None:
        """Bring all hosts back to health, and end what is left of the job."""
        for status in self.lab.status():
            if status.state == "frozen":
                self.lab.thaw(status.name)
            if status.state != "up" or status.faults or status.name in broken:
                self.lab.reboot(status.name)
        for pid in self.pids() - {self.warm.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def forget(self, job: Running) -> None:
        """Remove the files of a job."""
        shutil.rmtree(job.folder, ignore_errors=True)


def _where(plan: Plan, folder: Path, *, second: bool) -> list[str]:
    """The options that choose hosts, ranks and engine."""
    places = plan.second_places() if second else range(plan.hosts)
    ranks = 1 if second else plan.ranks
    hosts = ["-H", ",".join(f"{plan.host_name(place)}:{ranks}" for place in places)]
    if plan.engine == "local" or not places:
        return ["--nproc", str(ranks)]
    if second or plan.engine == "ssh":
        return hosts
    if plan.engine == "mpi":
        return ["--engine", "mpi", "--mpi-args=--allow-run-as-root", *hosts]
    if plan.engine == "container":
        shared = " ".join([*volumes(), f"--volume={folder}:{folder}", f"--volume={SCRIPT.parent}:{SCRIPT.parent}:ro"])
        return ["--image", IMAGE, "--python", sys.executable, "--container-args", shared, *hosts]
    return ["--nproc", str(ranks)]


def _in_slurm(plan: Plan, argv: list[str]) -> list[str]:
    """The command that runs `muster run` in an allocation."""
    hosts = ",".join(plan.host_name(place) for place in range(plan.hosts))
    places = ["-N", str(plan.hosts), "-w", hosts, "--ntasks-per-node", str(plan.ranks)]
    run = shlex.join([str(BIN / "muster"), *argv])
    return ["salloc", "--quiet", "--no-kill", *places, "sh", "-c", f"{run}; exit $?"]


def _verdict(state: dict[str, Any]) -> Verdict:
    failures: list[dict[str, Any]] = state.get("failures") or [{}]  # a controller killed early has written none
    failure = failures[-1]
    return Verdict(
        exit_code=state.get("exit_code"),
        status=state["status"],
        rank=failure.get("rank"),
        host=failure.get("host", ""),
        sentence=failure.get("sentence", ""),
    )


def _numbers(logs: str, world: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of each rank's lines, from the output of `muster logs`."""
    found: dict[int, list[int]] = {}
    for rank, number in re.findall(r"^\[\S+ +(\d+)\] line (\d+)$", logs, re.MULTILINE):
        found.setdefault(int(rank), []).append(int(number))
    if world == 1:
        found[0] = [int(number) for number in re.findall(r"line (\d+)$", logs, re.MULTILINE)]
    return tuple(tuple(found.get(rank, [])) for rank in range(world))


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _find_below(root: int, matches: Callable[[list[str]], bool]) -> int:
    """The first descendant of a process whose command line matches; LookupError if there is none."""
    queue = [root]
    for pid in queue:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            children = [
                child
                for task in os.listdir(f"/proc/{pid}/task")
                for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            ]
        except OSError:
            continue
        if len(line) > 1 and matches(line):
            return pid
        queue += [int(child) for child in children]
    raise LookupError
