"""`muster run` in PBS jobs, on a stand-in that has each oddity of the real one."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_jobs import EngineJob, Env, PbsEngine
from engine_promises import (
    Promises,
    check_refusal,
    gone,
    nothing_left,  # noqa: F401
    scripts,  # noqa: F401
    start_stubborn,
)
from engine_witness import (
    ONE_EACH,
    Witness,
    environments,
    uneven,  # noqa: F401
    witness,  # noqa: F401
)
from launching import MUSTER, Done, run_in
from pbs import PbsSite
from waiting import wait_until

from muster.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.getuid() != 0, reason="a mom writes to /etc of its host, in a lab started as root"),
]


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    with Lab(3, gpus={"h1": 2, "h2": 1}, bind=(shared,)) as lab:
        yield lab


@pytest.fixture(scope="module")
def engine(lab: Lab, shared: Path) -> Iterator[PbsEngine]:
    with PbsSite(lab, shared, kill_delay=10.0) as site:  # the default: time for `muster run` to report its end
        # The login shell above a script gets the signals of qsig too, and with it the job would end.
        (site.home / ".bash_profile").write_text("trap : USR2\n")
        yield PbsEngine(lab, shared, site)


@pytest.fixture(scope="module")
def witness_env() -> Env:
    """What a job script exports. The ranks see all GPUs that PBS gave them: none."""
    return {"OF_MY_SCRIPT": "a = b; 'c'", "PYTHONPATH": "/mine", "CUDA_VISIBLE_DEVICES": None}


@pytest.fixture(scope="module")
def disturb(engine: PbsEngine) -> Callable[[EngineJob], None]:
    """A stranger knocks at the port of the controller, and the job gets a hangup and another signal by qsig."""

    def disturb(job: EngineJob) -> None:
        (order,) = job.state.glob("muster/jobs/*/order.json")
        port = json.loads(order.read_text())["port"]
        knock = (
            "import socket, sys\n"
            "for words in (b'', b'GET / HTTP/1.0\\r\\n\\r\\n', bytes(range(256)) * 40, b'\\x16\\x03\\x01\\x02'):\n"
            f"    with socket.create_connection(('h1', {port}), timeout=5) as s: s.sendall(words)\n"
        )
        assert engine.lab.run("h3", [sys.executable, "-c", knock], timeout=20).returncode == 0
        for name in ("HUP", "USR2"):
            assert engine.site.run("h1", ["qsig", "-s", name, job.id]).returncode == 0
        job.wait_for("heard SIGUSR2", 3)
        time.sleep(0.7)  # for a second one, which must not come, and for what the hangup could end

    return disturb


class TestEveryEngine(Promises):
    """What holds on every engine."""


# --- what PBS gives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "argv", "gpus"),
    [
        ("select=1:ncpus=2:ngpus=2:host=h1+1:ngpus=1:host=h2", "", {"h1": [None, None], "h2": [None]}),
        ("select=1:ncpus=2:ngpus=2:host=h1+1:ngpus=1:host=h2", "-H h1:[1],h2", {"h1": ["1"], "h2": [None]}),
        ("select=1:ncpus=2:ngpus=2:host=h1+1:ngpus=1:host=h2", "--nproc 1", {"h1": [None], "h2": [None]}),
        ("select=1:ncpus=4:ngpus=1:mpiprocs=4:host=h1", "", {"h1": [None]}),
    ],
    ids=["unequal", "chosen", "nproc", "more lines than GPUs"],
)
def test_the_gpus_that_pbs_gives_are_the_ranks(
    engine: PbsEngine, request_: str, argv: str, gpus: dict[str, list[str | None]]
) -> None:
    request = ("-l", request_, "-l", "place=scatter")
    done = engine.run({}, "--no-zygote", *argv.split(), "who.py", request=request, CUDA_VISIBLE_DEVICES=None)
    found: dict[str, list[str | None]] = {}
    for env in environments(done):
        found.setdefault(env["host"], []).append(env.get("CUDA_VISIBLE_DEVICES"))
    assert found == gpus, done.said


def test_each_line_of_the_nodefile_is_a_rank_also_if_the_server_is_down(engine: PbsEngine, shared: Path) -> None:
    state = shared / "state-of-down"
    script = f"""
cd {shared}; export XDG_STATE_HOME={state}; unset CUDA_VISIBLE_DEVICES
touch {engine.site.folder}/server/down; trap 'rm {engine.site.folder}/server/down' EXIT
{MUSTER} run --no-zygote who.py
"""
    job = engine.site.qsub("h1", script, select="2:ncpus=1+1:ncpus=1:mpiprocs=2:host=h2", walltime=60)
    assert job.wait(90) == 0, job.output
    silent = "could not determine the GPUs that PBS allocated .*qstat: cannot connect to server pbssrv"
    assert re.search(f"muster: {silent}.*; each line of PBS_NODEFILE becomes one rank", job.output), job.output
    assert "muster: 4 ranks on 2 hosts" in job.output


def test_packed_chunks_are_ranks_on_one_host(engine: PbsEngine) -> None:
    done = engine.run({}, "--no-zygote", "who.py", request=("-l", "select=3:ncpus=1"), CUDA_VISIBLE_DEVICES=None)
    assert [env["host"] for env in environments(done)] == ["h1"] * 3, done.said


def test_the_ranks_of_a_host_share_the_cpus_that_pbs_gave(uneven: EngineJob) -> None:  # noqa: F811
    assert [env["OMP_NUM_THREADS"] for env in environments(uneven.wait())] == ["1", "1", "1"]


def test_without_a_request_for_gpus_each_line_is_a_rank_without_one(witness: Witness) -> None:  # noqa: F811
    envs = environments(witness.done, 130)
    assert [(env["host"], env.get("CUDA_VISIBLE_DEVICES")) for env in envs] == [(host, None) for host in ONE_EACH]


def test_what_the_job_script_exports_reaches_the_ranks_of_every_host(witness: Witness) -> None:  # noqa: F811
    envs = environments(witness.done, 130)
    assert [(env["OF_MY_SCRIPT"], env["PYTHONPATH"]) for env in envs] == [("a = b; 'c'", "/mine")] * 3
    assert len({env["PATH"] for env in envs}) == 1
    assert [env["PBS_NODENUM"] for env in envs] == ["0", "1", "2"], "that is about a host"


def test_the_sums_of_gadi_are_shared_out(engine: PbsEngine) -> None:
    sums = {"PBS_NCPUS": "8", "PBS_NGPUS": "2", "PBS_NCI_NCPUS_PER_NODE": "4"}
    request = ("-l", "select=2:ncpus=4:mpiprocs=4:ngpus=1", "-l", "place=scatter")
    done = engine.run({}, "--no-zygote", "who.py", request=request, CUDA_VISIBLE_DEVICES=None, **sums)
    assert [env["host"] for env in environments(done)] == ["h1", "h2"], done.said


def test_nothing_of_a_run_is_left_for_the_file_that_comes_at_the_end(engine: PbsEngine, witness: Witness) -> None:  # noqa: F811
    assert engine.exit_code(witness.job) == 130
    assert engine.site.job(witness.job.id).output == ""


def test_agents_by_ssh_belong_to_the_job(engine: PbsEngine) -> None:
    job = engine.start(ONE_EACH, "--no-zygote", "--grace", "1", "--pbs-start", "ssh", "stubborn.py")
    job.wait_for("up\n", 3)
    running = " ".join(line for lines in engine.left().values() for line in lines)
    assert "pbsdsh" not in running
    engine.site.job(job.id).qdel()
    gone(engine)
    assert "stopped by SIGTERM" in job.err, job.said


def test_a_rank_that_fails_under_agents_by_ssh_is_reported(engine: PbsEngine) -> None:
    done = engine.run(ONE_EACH, "--no-zygote", "--grace", "0", "--pbs-start", "ssh", "fail.py", "exit3")
    assert done.code == 3, done.said
    assert "rank 2 on h3 failed first" in done.err


def test_a_stranger_at_the_port_and_a_hangup_by_qsig_do_not_disturb_the_job(witness: Witness) -> None:  # noqa: F811
    assert witness.done.code == 130, witness.done.said
    assert "stopped by Ctrl-C after" in witness.done.err, witness.done.said
    assert not re.search("Traceback|failed|lost|SSL", witness.done.err), witness.done.said


def test_a_signal_by_qsig_reaches_each_rank_once(witness: Witness) -> None:  # noqa: F811
    heard = [witness.done.lines(rank).count("heard SIGUSR2") for rank in range(3)]
    assert heard == [1, 1, 1], witness.done.said


# --- being ended by PBS ---------------------------------------------------------------------------------------

ENDED = (
    r"^muster: stopped by SIGTERM after \d+\.\d s \(in a PBS job this means qdel, the walltime limit or a requeue\)$"
)


def test_qdel_is_reported_as_such_and_leaves_nothing(engine: PbsEngine) -> None:
    job = engine.start(ONE_EACH, "--no-zygote", "patient.py", "never")
    job.wait_for("up", 3)
    engine.site.job(job.id).qdel()
    done = job.wait(30)
    assert done.code == 143, done.said
    assert re.search(ENDED, done.err, re.MULTILINE), done.said
    assert not re.search("failed|lost|Traceback", done.err), done.said
    gone(engine)


def test_qdel_of_ranks_that_ignore_it_leaves_nothing(engine: PbsEngine) -> None:
    job = start_stubborn(engine, "--grace", "60")
    engine.site.job(job.id).qdel()
    gone(engine)
    assert "SIGTERM: stopping all ranks (up to 60 s" in job.err, job.said


def test_the_walltime_is_reported_as_such_and_leaves_nothing(engine: PbsEngine) -> None:
    request = ("-l", "select=2:ncpus=1:mpiprocs=1", "-l", "place=scatter", "-l", "walltime=100")
    job = engine.start({}, "--no-zygote", "stubborn.py", request=request)
    job.wait_for("up\n", 2)
    engine.site.job(job.id).limit(1)
    job.wait_for_word("SIGTERM: stopping all ranks")
    gone(engine)
    assert engine.site.job(job.id).wait() == -29
    assert "job killed: walltime" in engine.site.job(job.id).output


# --- being suspended by PBS -----------------------------------------------------------------------------------

BUSY = """
import os, sys, time
held = b"x" * (100 << 20)
number = 0
while not os.path.exists(sys.argv[1]):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.02)
"""


def states(engine: PbsEngine, script: str) -> set[str]:
    """The states of all processes that run a script."""
    pids = [pid for host in engine.lab.names for pid, command in engine.lab.processes(host) if script in command]
    found = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
    return set(found) if len(found) >= 3 else set()


def used_memory(engine: PbsEngine, job: EngineJob) -> int:
    """What PBS counts for a job, in megabytes."""
    found = re.search(r"resources_used.mem = (\d+)kb", engine.site.run("h1", ["qstat", "-f", job.id]).stdout)
    return int(found[1]) >> 10 if found else 0


def test_a_suspended_job_stands_still_and_continues(engine: PbsEngine, shared: Path) -> None:
    common = ("--no-zygote", "--no-check", "--lost-after", "3")
    jobs: list[EngineJob] = []
    for name, how in (("tm", ()), ("ssh", ("--pbs-start", "ssh"))):
        (shared / f"busy_{name}.py").write_text(BUSY)
        jobs.append(engine.start(ONE_EACH, *common, *how, f"busy_{name}.py", f"{name}.flag"))
    for job in jobs:
        for host in ONE_EACH:
            job.wait_for(f"[{host}")
        wait_until("the memory", lambda job=job: used_memory(engine, job) > 3 * 100, 30, every=0.5)
        assert engine.site.run("h1", ["qsig", "-s", "suspend", job.id]).returncode == 0
    for name in ("tm", "ssh"):
        wait_until("all to stop", lambda name=name: states(engine, f"busy_{name}.py") == {"T"}, 20, every=0.4)
    time.sleep(0.5)  # what the controller had read by then
    lines = [job.out.count("\n") for job in jobs]
    time.sleep(5)
    assert [job.out.count("\n") for job in jobs] == lines
    for job in jobs:
        assert engine.site.run("h1", ["qsig", "-s", "resume", job.id]).returncode == 0
    for job, before in zip(jobs, lines, strict=True):
        wait_until("more lines", lambda job=job, before=before: job.out.count("\n") > before + 100, 30)
    (shared / "tm.flag").touch()
    done = jobs[0].wait()
    assert done.code == 0, done.said[-3000:]
    assert engine.site.run("h1", [MUSTER, "stop"], XDG_STATE_HOME=str(jobs[1].state)).returncode == 0
    done = jobs[1].wait()
    assert re.search(r"^muster: stopped by muster stop after \d+\.\d s$", done.err, re.MULTILINE), "that is no qdel"


# --- Torque ---------------------------------------------------------------------------------------------------


def test_torque_is_understood_too(lab: Lab, engine: PbsEngine, shared: Path) -> None:
    folder = shared / "torque"
    folder.mkdir()
    (folder / "who.py").write_text((shared / "who.py").read_text())
    engine.site.close()  # a host has one mom
    try:
        with PbsSite(lab, folder, flavour="torque") as site:
            torque = PbsEngine(lab, folder, site)
            done = torque.run({}, "--no-zygote", "who.py", request=("-l", "nodes=2:ppn=2"))
            assert [env["host"] for env in environments(done)] == ["h1", "h1", "h2", "h2"]
            request = ("-l", "nodes=2:ppn=2:gpus=1")
            done = torque.run({}, "--no-zygote", "who.py", request=request, CUDA_VISIBLE_DEVICES=None)
            assert [env["host"] for env in environments(done)] == ["h1", "h2"], done.said
    finally:
        for host in lab.names:
            engine.site._start_mom(host)
        for host in lab.names:
            engine.site._await_mom(host)


# --- what cannot work -----------------------------------------------------------------------------------------


@pytest.fixture
def on_login(engine: PbsEngine) -> Callable[..., Done]:
    """`muster run` on h1, outside any job."""

    def run(*argv: str, **env: str) -> Done:
        return run_in(engine.lab, "h1", engine.folder, *argv, **env)

    return run


def test_the_engine_is_refused_outside_a_job(on_login: Callable[..., Done]) -> None:
    check_refusal(on_login("--engine", "pbs", "train.py"), 2, "not inside a PBS job", "muster submit --pbs")


def test_a_missing_pbsdsh_is_reported(engine: PbsEngine, shared: Path) -> None:
    (shared / "nothing").mkdir(exist_ok=True)
    env = {"PATH": str(shared / "nothing"), "PBS_EXEC": str(shared / "nothing")}
    done = engine.run(ONE_EACH, "train.py", **env)
    check_refusal(done, 125, "`pbsdsh` not found on this host", "--pbs-start ssh")


def test_a_host_that_is_not_in_the_job_is_refused(engine: PbsEngine) -> None:
    done = engine.run({"h1": 1, "h2": 1}, "--engine", "pbs", "-H", "h2,h3", "train.py")
    check_refusal(done, 125, r"^h3: not part of PBS job \S+, 2 hosts \(h1, h2\)", "omit -H")


def test_a_job_folder_that_the_hosts_do_not_share_is_reported(engine: PbsEngine) -> None:
    done = engine.run(ONE_EACH, "--no-zygote", "train.py", XDG_STATE_HOME="/tmp/mine")
    check_refusal(done, 125, "^h[23]: the job directory is not visible there", "XDG_STATE_HOME.*--pbs-start ssh")


def test_a_job_folder_that_the_hosts_do_not_share_is_enough_for_ssh(engine: PbsEngine) -> None:
    done = engine.run(ONE_EACH, "--no-zygote", "--pbs-start", "ssh", "who.py", XDG_STATE_HOME="/tmp/mine")
    assert [env["host"] for env in environments(done)] == ["h1", "h2", "h3"]


@pytest.mark.parametrize(
    ("nodefile", "error"),
    [
        (None, "PBS_NODEFILE is not set"),
        ("/nowhere", "could not read PBS_NODEFILE /nowhere"),
        ("/dev/null", "PBS_NODEFILE lists no hosts"),
        ("/etc/passwd", "line 1 of PBS_NODEFILE is not a host name"),
    ],
    ids=["unset", "missing", "empty", "another file"],
)
def test_a_nodefile_that_cannot_be_used_is_refused(engine: PbsEngine, nodefile: str | None, error: str) -> None:
    done = engine.run({"h1": 1}, "train.py", PBS_NODEFILE=nodefile)
    check_refusal(done, 2, error, ".")


def test_a_changed_nodefile_does_not_run_ranks_on_another_host(engine: PbsEngine, shared: Path) -> None:
    (shared / "reversed").write_text("h2\nh1\n")
    done = engine.run({"h1": 1, "h2": 1}, "--no-zygote", "who.py", PBS_NODEFILE=str(shared / "reversed"))
    check_refusal(done, 125, "^h[12]: pbsdsh started its agent on h[12], because PBS_NODEFILE differs", "-H host1")


def test_more_ranks_than_pbs_gave_gpus_are_refused(engine: PbsEngine) -> None:
    request = ("-l", "select=1:ncpus=2:ngpus=2:host=h1", "-l", "place=scatter")
    done = engine.run({}, "--no-zygote", "--nproc", "3", "train.py", request=request, CUDA_VISIBLE_DEVICES=None)
    check_refusal(done, 125, "^h1: 3 ranks need 3 GPUs, but the host has 2", "h1:2")
