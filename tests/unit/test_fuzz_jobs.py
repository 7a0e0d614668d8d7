"""Random damage to everything that is kept about jobs: no command breaks, and other jobs are shown as they are."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzz.mutations import JUNK, mutated
from kept_jobs import keep, state_of
from spoiled_files import dumped, remove, spoil

from muster.cli import main
from muster.dashboard.job_list import JobList
from muster.dashboard.routes import Answer, NotThere, route
from muster.engines.pbs.pbs_requeue import PbsRequeue
from muster.hosts import Host
from muster.jobs import host_history, job_folders, remote_states
from muster.jobs.job_folders import read_job
from muster.jobs.remote_place import RemotePlace, read_place, write_place
from muster.jobs.requeue_marks import find_earlier, leave_mark
from muster.jobs.state import AttemptState, Failure, HostChangeState, HostState, JobState, Moment, RankState, Report

pytestmark = pytest.mark.timeout(100)

BAD, GOOD = "20261115-080000-train-bbbb", "20261115-070000-other-aaaa"
ROUNDS = 60
COMMANDS = [
    ["ps", "--all"],
    ["ps", "--json"],
    ["show", BAD],
    ["logs", BAD],
    ["logs", BAD, "--rank", "0", "-n", "3", "-t", "--since", "1d"],
    ["top", BAD, "--once"],
    ["attach", BAD],
    ["stop", BAD],
    ["drain", BAD, "h1"],
    ["stop", "--all"],
    ["ps", "--prune", "--older", "10000d"],
]
ROUTES = [
    "view.json",
    "state.json",
    "metrics",
    "log.json?rank=0",
    "log.json?find=a",
    "log.txt?rank=0",
    "stacks.json?report=0",
]


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(job_folders, "_only", None)
    with tempfile.TemporaryDirectory() as folder:  # sockets need short paths
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        ssh = Path(folder) / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text("#!/bin/sh\nexit 255\n")
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin")
        yield Path(folder) / "muster" / "jobs"


def full_state(phase: str) -> JobState:
    """A state with something in every field."""
    now = time.time()
    attempt = AttemptState(
        number=0, begin=now, world_size=2, hosts=("h1",), slots=(2,), lost_at=now, swaps={"h2": "h1"}
    )
    fields: dict[str, Any] = {
        "controller_birth": "00000000-1",
        "hosts": (HostState(name="h1", state="draining", deadline=now + 9, cpus=4), HostState(name="h2", role="spare")),
        "ranks": (
            RankState(rank=0, host="h1", local_rank=0, place="a.py:1"),
            RankState(rank=1, host="h1", local_rank=1),
        ),
        "history": (Moment(time=now, step_rate=1.0, waiting={0: 0.5}, hosts={"h1": (0.1, 0.2, None, None, None)}),),
        "reports": (Report(kind="hang", time=now, sentence="rank 0 hangs", ranks=(0,), stacks={0: "at a.py:1"}),),
        "failures": (
            Failure(attempt=0, time=now, sentence="rank 0 failed", detail="Error", lines=("Fix: x",), rank=0),
        ),
        "attempts": (attempt, attempt),
        "host_changes": (HostChangeState(time=now, host="h1", state="lost", why="silent"),),
        "phases": {"connected": 0.5},
        "hung_since": now,
        "slow": (1,),
    }
    return state_of(BAD, phase=phase, exit_code=1 if phase == "ended" else None, **fields)


def keep_whole(rng: random.Random, jobs: Path) -> Path:
    """A job directory with every file that Muster writes there."""
    folder = keep(full_state(rng.choice(["ended", "running", "connecting"])))
    (folder / "attempt-0").mkdir(exist_ok=True)
    for rank in range(2):
        (folder / "attempt-0" / f"rank-{rank}.log").write_bytes(b"a line\nanother\n")
    (folder / "attempt-0" / "order").write_bytes(b"0 1 15 1763300000000\n1 2 15 1763300000001\n")
    (folder / "socket-at").write_text(f"/tmp/muster-{os.getuid()}/{BAD}-none.socket")
    for name in ("screen.log", "stacks-1.txt", "plan.json"):
        (folder / name).write_text("{}")
    if rng.random() < 0.2:
        write_place(folder, RemotePlace(host=Host(name="h9"), mark="x", confirmed=True, life="alive"))
    host_history.path().write_text(json.dumps({"version": 1, "hosts": {}}))
    return folder


def spoil_some(rng: random.Random, folder: Path) -> list[str]:
    """Damage one to three things in a job directory, and say which."""
    files = ["state.json", "socket", "attempt-0", "attempt-0/order", "attempt-0/rank-0.log"]
    files += ["socket-at", "remote.json", "screen.log", "stacks-1.txt", "../../hosts.json"]
    chosen = [*(["state.json"] if rng.random() < 0.6 else []), *rng.sample(files[1:], rng.randint(0, 2))]
    for name in sorted(chosen, reverse=True):
        if (folder / name).parent.is_dir():
            spoil(rng, folder / name)
    return chosen


def clean(folder: Path) -> None:
    remove(folder)
    remove(host_history.path())


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_to_a_job_directory_breaks_a_command(
    seed: int, jobs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    keep(state_of(GOOD, phase="ended", exit_code=3, sentence="rank 0 failed"))
    for number in range(ROUNDS // 4):
        folder = keep_whole(rng, jobs)
        what = (seed, number, spoil_some(rng, folder))
        for command in rng.sample(COMMANDS, 6):
            monkeypatch.setattr(remote_states, "_asked", float("-inf"))
            monkeypatch.setattr(job_folders, "_only", None)
            begin = time.process_time()
            code = main(command)
            said = capfd.readouterr()
            assert time.process_time() - begin < 5, (what, command)
            assert code in (0, 2, 125), (what, command, said)
            both = said.out + said.err
            assert "internal error" not in both, (what, command, both)
            assert '\n  File "' not in both, (what, command, both)
            assert "\x1b" not in (said.err if command[0] == "logs" else both), (what, command, both)
            if command[0] == "ps" and "--prune" not in command:
                assert GOOD in said.out, (what, command, both)
                assert "failed 3" in said.out, (what, command, both)
                assert not any(line.startswith("fake") for line in both.splitlines()), (what, both)
        clean(folder)


@pytest.mark.parametrize("seed", range(2))
def test_no_damage_to_a_job_directory_breaks_the_dashboard(seed: int, jobs: Path) -> None:
    rng = random.Random(seed)
    good = keep(state_of(GOOD, phase="ended", exit_code=3))
    for number in range(ROUNDS):
        folder = keep_whole(rng, jobs)
        what = (seed, number, spoil_some(rng, folder))
        listed = JobList(good)
        entries = {entry["id"]: entry["status"] for entry in listed.entries()}
        assert entries[GOOD] == "failed 3", what
        for path in ["jobs.json", *(f"jobs/{BAD}/{name}" for name in rng.sample(ROUTES, 3))]:
            try:
                name, _, query = path.partition("?")
                assert isinstance(route(listed, name, query, stays=None), Answer)
            except NotThere:
                pass
        clean(folder)


def test_no_damage_to_the_history_of_hosts_keeps_a_job_from_starting() -> None:
    rng = random.Random(3)
    host = Host(name="h1")
    incident = host_history.Incident(time=time.time(), kind="hardware", what="a disk failed", job=BAD)
    said: list[str] = []
    for _ in range(ROUNDS):
        host_history.path().parent.mkdir(parents=True, exist_ok=True)
        host_history.remember(host, incident)
        spoil(rng, host_history.path())
        host_history.read(said.append).bad(host, time.time())
        clean(host_history.path())
    assert said
    assert all(line.startswith("could not read the history of hosts in ") and "\n" not in line for line in said)


def test_no_damage_to_the_mark_of_a_requeued_job_keeps_it_from_starting(jobs: Path) -> None:
    rng = random.Random(4)
    requeue = PbsRequeue(job="7.server", title="PBS job 7", limit=3, warning=0.0, script="x.sh")
    for _ in range(ROUNDS):
        folder = keep_whole(rng, jobs)
        leave_mark(folder, requeue.mark, 2)
        spoil(rng, folder / requeue.mark)
        spoil(rng, folder / "attempt-0")
        found = find_earlier(requeue)
        assert found is None or found.requeues >= 1
        clean(folder)


def test_whatever_a_host_answers_about_its_jobs_is_taken_or_ignored(jobs: Path) -> None:
    rng = random.Random(5)
    state = json.loads(dumped(full_state("running").as_data()))
    for number in range(ROUNDS):
        folder = keep_whole(rng, jobs)
        place = RemotePlace(host=Host(name="h9"), mark="x", confirmed=rng.random() < 0.5, life="alive")
        write_place(folder, place)
        answer = mutated({"jobs": {BAD: [state, "alive"]}}, rng)
        if number % 7 == 0:
            answer = {"jobs": rng.choice(JUNK)}
        remote_states.keep(folder, answer if isinstance(answer, dict) else {})
        assert read_place(folder) is not None, answer
        assert read_job(folder).state is not None, answer
        clean(folder)
