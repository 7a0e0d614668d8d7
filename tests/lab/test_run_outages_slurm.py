"""Outages under Slurm: agents that dialed back dial again, and know when nobody is there any more."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_jobs import NEEDS_SLURM, EngineJob, SlurmEngine
from test_run_outages import LINES
from waiting import wait_until

from muster.lab import Lab

pytestmark = NEEDS_SLURM

RANKS = {"h1": 1, "h2": 1}


@pytest.fixture(scope="module")
def engine(shared: Path) -> Iterator[SlurmEngine]:
    (shared / "lines.py").write_text(LINES)
    with Lab(2, slurm=True, bind=(shared,)) as lab:
        yield SlurmEngine(lab, shared)


@pytest.fixture
def stop(engine: SlurmEngine, shared: Path) -> Iterator[Path]:
    stop = shared / f"stop-{time.monotonic_ns()}"
    yield stop
    stop.touch()
    engine.lab.heal("h2")
    wait_until("the end of everything", lambda: not engine.left(), 60, lambda: str(engine.left()), every=0.4)


def start(engine: SlurmEngine, stop: Path, *options: str) -> EngineJob:
    job = engine.start(RANKS, "--no-check", "--no-zygote", *options, "lines.py", stop.name)
    for host in RANKS:
        wait_until(f"lines of {host}", lambda host=host: f"[{host}" in job.out, 60, lambda: job.err)
    return job


def agent(engine: SlurmEngine, host: str) -> int:
    """The agent is what srun's daemon started."""
    return min(pid for pid, line in engine.lab.processes(host) if "MUSTER_DIAL" in line and "srun" not in line)


def states(engine: SlurmEngine) -> set[str]:
    """The states of all ranks."""
    pids = [pid for host in RANKS for pid, line in engine.lab.processes(host) if " lines.py" in line]
    ranks = [pid for pid in pids if b"RANK=" in Path(f"/proc/{pid}/environ").read_bytes()]
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in ranks}


@pytest.mark.parametrize("seconds", [6, 15])
def test_a_host_whose_network_was_cut_dials_again_and_nothing_was_lost(
    engine: SlurmEngine, stop: Path, seconds: int
) -> None:
    job = start(engine, stop)
    engine.lab.cut("h2")
    time.sleep(seconds)
    engine.lab.heal("h2")
    wait_until("the host", lambda: "h2 is back" in job.err, 30, lambda: job.err)
    stop.touch()
    done = job.wait(60)
    assert done.code == 0, done.said[-3000:]
    for rank in (0, 1):
        lines = done.log(rank).decode().splitlines()
        assert [int(line.split()[1]) for line in lines[:-1]] == list(range(int(lines[-1].split()[1])))


def test_an_agent_that_is_killed_is_known_to_be_dead_long_before_its_lease_ends(
    engine: SlurmEngine, stop: Path
) -> None:
    job = start(engine, stop, "--lost-after", "90")
    os.kill(agent(engine, "h2"), signal.SIGKILL)
    done = job.wait(60)
    assert done.code == 125, done.said
    assert "muster: lost h2: its agent died" in done.err


def test_agents_that_are_refused_by_their_controllers_port_end_at_once(engine: SlurmEngine, stop: Path) -> None:
    job = start(engine, stop, "--lost-after", "90")
    job.signal(signal.SIGKILL)
    wait_until(
        "the end of the ranks",
        lambda: not any("lines.py" in line for lines in engine.left().values() for line in lines),
        20,
        every=0.4,
    )


def test_the_time_for_which_a_job_was_suspended_does_not_count_as_silence(engine: SlurmEngine, stop: Path) -> None:
    job = engine.batch(RANKS, "--no-check", "--no-zygote", "--lost-after", "8", "lines.py", stop.name)
    for host in RANKS:
        wait_until(f"lines of {host}", lambda host=host: f"[{host}" in job.out, 60, lambda: job.err)
    engine.shell(f"scontrol suspend {job.id}")
    wait_until("all ranks to stop", lambda: states(engine) == {"T"}, 20, lambda: str(states(engine)))
    time.sleep(0.5)  # what the controller had read by then
    begin = job.out.count("\n")
    time.sleep(10)
    assert job.out.count("\n") == begin
    engine.shell(f"scontrol resume {job.id}")
    wait_until("more lines", lambda: job.out.count("\n") > begin + 400, 30, lambda: job.said)
    stop.touch()
    done = job.wait(60)
    assert done.code == 0, done.said[-3000:]
