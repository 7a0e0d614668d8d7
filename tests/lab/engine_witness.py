"""One run per engine that many tests inspect: its environment, signals and stdin, and the processes on all hosts."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import Engine, EngineJob, Env
from launching import Done
from waiting import wait_until

# Prints its environment, reads its stdin and reports signals; on Ctrl-C it takes its time to save, and ends.
WITNESS = """
import json, os, signal, socket, sys, time
def note(number, frame):
    os.write(1, f"heard {signal.Signals(number).name}\\n".encode())  # a print may be under way
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
print(json.dumps({**os.environ, "host": socket.gethostname()}))
print("read", os.environ["RANK"], len(sys.stdin.read()))
print("up", flush=True)
try: time.sleep(1000)
except KeyboardInterrupt: time.sleep(1); print("saved", flush=True)
"""

ONE_EACH = {"h1": 1, "h2": 1, "h3": 1}


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The command lines and environments of all processes of all hosts while the ranks ran."""

    lines: list[list[str]]
    settings: list[list[str]]
    orders: list[str]
    """What agents get to find their controller, from files and environments."""
    modes: list[int]
    """The permissions of these files."""


@dataclass(frozen=True, kw_only=True)
class Witness:
    """A run that has ended, and what was seen meanwhile."""

    job: EngineJob
    done: Done
    processes: Processes
    seconds_to_end: float
    """From Ctrl-C on."""
    neighbor: EngineJob
    """A run on the same hosts, which was killed before this one was ended by Ctrl-C."""


@pytest.fixture(scope="module")
def witness_env() -> Env:
    """More variables for the run; an engine's file may have its own."""
    return {}


@pytest.fixture(scope="module")
def disturb() -> Callable[[EngineJob], None]:
    """What else happens to the run and must not disturb it; an engine's file may have its own."""
    return lambda job: None


@pytest.fixture(scope="module")
def witness(engine: Engine, shared: Path, witness_env: Env, disturb: Callable[[EngineJob], None]) -> Witness:
    (shared / "witness.py").write_text(WITNESS)
    answers = shared / f"{engine.name}.answers"
    answers.write_text("x" * 200_000)
    try:
        return _witnessed(engine, {"ANSWERS": str(answers), **witness_env}, disturb)
    except BaseException:
        engine.restore()  # else the next test would find its processes
        raise


def _witnessed(engine: Engine, env: dict[str, Any], disturb: Callable[[EngineJob], None]) -> Witness:
    job = engine.start(ONE_EACH, "--no-zygote", "--grace", "60", "witness.py", **env)
    job.wait_for("up\n", 3)
    processes = _processes(engine, job)
    neighbor = engine.start({"h1": 1, "h2": 1}, "--no-zygote", "patient.py", "never")
    neighbor.wait_for("up", 2)
    job.signal(signal.SIGUSR1)
    job.wait_for("heard SIGUSR1", 3)
    disturb(job)
    neighbor.signal(signal.SIGKILL)
    wait_until("the end of the neighbor", lambda: neighbor.ended, 30, lambda: neighbor.said)
    begin = time.monotonic()
    job.signal(signal.SIGINT)
    done = job.wait(50)
    return Witness(job=job, done=done, processes=processes, seconds_to_end=time.monotonic() - begin, neighbor=neighbor)


@pytest.fixture(scope="module")
def uneven(engine: Engine) -> EngineJob:
    """A run of WHO with different numbers of ranks on its hosts, which has ended."""
    job = engine.start({"h1": 2, "h2": 1}, "--no-zygote", "who.py")
    job.wait()
    return job


def environments(done: Done, code: int = 0) -> list[dict[str, str]]:
    """The environment of each rank of WHO or WITNESS, by rank."""
    assert done.code == code, done.said
    found = [json.loads(line) for line in re.findall(r"^\[\S+ +\d+\] (\{.*)$", done.out, re.MULTILINE)]
    return sorted(found, key=lambda env: int(env["RANK"]))


def _processes(engine: Engine, job: EngineJob) -> Processes:
    everything = [Path(f"/proc/{pid}") for host in engine.lab.names for pid, _ in engine.lab.processes(host)]
    settings = [_read(path / "environ").split("\0") for path in everything]
    files = list(job.state.glob("muster/jobs/*/order.json"))
    dialed = [word[12:] for words in settings for word in words if word.startswith("MUSTER_DIAL={")]
    return Processes(
        lines=[_read(path / "cmdline").split("\0") for path in everything],
        settings=settings,
        orders=[file.read_text() for file in files] + dialed,
        modes=[file.stat().st_mode & 0o777 for file in files],
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
