"""Ways to slow a rank down and to restore it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scoreboard import shims
from muster.lab import Lab

CHUNK = 1 << 18
"""Bytes that every rank reads per step."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a job runs."""

    folder: Path
    """Shared by all its ranks."""
    lab: Lab | None = None
    """Its hosts; None: this machine."""

    def pid(self, rank: int) -> int:
        """The process of a rank on this machine."""
        return int((self.folder / f"pid-{rank}").read_text())


Make = Callable[[Stage, int], "contextlib.AbstractContextManager[None]"]
"""A context manager that slows a rank down."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause of a slowdown."""

    name: str
    make: Make
    words: str
    """Text that the reported reason must contain."""
    needs: Callable[[], str] = lambda: ""
    """Why it is not possible on this machine; empty if it is."""
    hosts: Sequence[int] = ()
    """Number of ranks on each lab host; empty: all ranks on this machine."""
    gpus: int = 0
    """Number of fake GPUs per host."""
    arguments: Sequence[str] = ()
    """Arguments of the script."""


def quiet_group() -> Path:
    """The control group in which jobs run."""
    return Path("/sys/fs/cgroup/cpu") / f"muster-stragglers-{os.getpid()}"


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Give jobs priority over other load on this machine, if we are root."""
    group = quiet_group()
    if os.getuid() != 0 or not group.parent.joinpath("cpu.shares").exists():
        yield
        return
    group.mkdir()
    try:
        (group / "cpu.shares").write_text("200000")
        yield
    finally:
        _remove(group)


@contextlib.contextmanager
def sleep(stage: Stage, rank: int) -> Generator[None]:
    """The rank's own code takes longer."""
    file = stage.folder / f"sleep-{rank}"
    file.write_text("0.18")
    try:
        yield
    finally:
        file.unlink()


@contextlib.contextmanager
def quota(stage: Stage, rank: int) -> Generator[None]:
    """A cgroup limits it to a fifth of a CPU."""
    group = quiet_group() / "limited"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("20000")
        (group / "cpu.cfs_quota_us").write_text("4000")
        _move(group, stage, rank)
        yield
    finally:
        _move(group.parent, stage, rank)
        _remove(group)


def _move(group: Path, stage: Stage, rank: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the job has ended
        (group / "cgroup.procs").write_text(str(stage.pid(rank)))


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def neighbour(stage: Stage, rank: int) -> Generator[None]:
    """It is bound to a CPU that is used by another process with higher priority."""
    pid = stage.pid(rank)
    cpus = os.sched_getaffinity(pid)
    cpu = max(cpus)
    code = f"import os; os.sched_setaffinity(0, [{cpu}]); os.nice(-5)\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", code])
    (quiet_group() / "cgroup.procs").write_text(str(other.pid))
    try:
        _bind(pid, {cpu})
        yield
    finally:
        other.kill()
        other.wait()
        with contextlib.suppress(ProcessLookupError):
            _bind(pid, cpus)


def _bind(pid: int, cpus: set[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cpus)


@contextlib.contextmanager
def disk(stage: Stage, rank: int) -> Generator[None]:
    """A cgroup limits its reads so that a step takes 0.32 s."""
    group = Path("/sys/fs/cgroup/blkio") / f"muster-stragglers-{os.getpid()}"
    group.mkdir()
    device = os.stat(stage.folder).st_dev
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {int(CHUNK / 0.32)}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        _move(group, stage, rank)
        yield
    finally:
        _move(group.parent, stage, rank)
        _remove(group)


@contextlib.contextmanager
def gpu(stage: Stage, rank: int) -> Generator[None]:
    """Its GPU is too hot: the clock rate drops, and everything takes longer."""
    assert stage.lab is not None
    put_gpus(stage.lab, hot=rank)
    with sleep(stage, rank):
        yield
    put_gpus(stage.lab)


def put_gpus(lab: Lab, hot: int | None = None) -> None:
    """Give a host an nvidia-smi that reports GPUs, one of which may be too hot."""
    healthy = {"utilization.gpu": "97", "clocks.sm": "1980", "clocks.max.sm": "1980"}
    sick = {
        "clocks.sm": "1290",
        "temperature.gpu": "88",
        "clocks_throttle_reasons.hw_thermal_slowdown": "Active",
    }
    gpus = [shims.gpu("h1", number, **{**healthy, **(sick if number == hot else {})}) for number in range(4)]
    script = "mkdir -p /run/shim && cat > /run/shim/new && mv /run/shim/new /run/shim/gpus.json"
    lab.run("h1", ["sh", "-c", script], timeout=10, input=json.dumps({"gpus": gpus, "processes": []}))
    script = "cat > /usr/local/bin/nvidia-smi && chmod 755 /usr/local/bin/nvidia-smi"
    lab.run("h1", ["sh", "-c", script], timeout=10, input=shims.NVIDIA_SMI)


@contextlib.contextmanager
def network(stage: Stage, rank: int) -> Generator[None]:
    """The cable of its host carries 80 megabits per second."""
    assert stage.lab is not None
    host = stage.lab.names[rank]
    stage.lab.slow(host, rate="80mbit")
    yield
    stage.lab.heal(host)


def _root(*files: str) -> Callable[[], str]:
    def needs() -> str:
        if os.getuid() != 0:
            return "needs root"
        missing = [file for file in files if not os.path.exists(file)]
        return f"this machine has no {missing[0]}" if missing else ""

    return needs


CAUSES = (
    Cause(name="its own code takes longer (sleep)", make=sleep, words="Its own code is slower"),
    Cause(
        name="CPU quota of a control group",
        make=quota,
        words="A cgroup quota limits it to 0.2 of a CPU",
        needs=_root("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    ),
    Cause(
        name="a busy neighbor on its CPU",
        make=neighbour,
        words="Other processes use its CPUs",
        needs=_root("/proc/self/schedstat"),
    ),
    Cause(
        name="a slow disk",
        make=disk,
        words="It waits for its disk",
        needs=_root("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device"),
    ),
    Cause(
        name="a GPU that is too hot (pretended)",
        make=gpu,
        words="runs at 1290 MHz vs. 1980 MHz on the other ranks (too hot)",
        needs=_root(),
        hosts=(4,),
        gpus=4,
    ),
    Cause(
        name="a slow network (tbf)",
        make=network,
        words="are queued to be sent",
        needs=_root(),
        hosts=(1, 1, 1),
        arguments=("--width", "384"),
    ),
)
