"""`muster run` on the login node of a real Slurm: allocations of its own, and what cannot work."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_jobs import NEEDS_SLURM, SlurmEngine
from engine_promises import (
    check_refusal,
    gone,
    nothing_left,  # noqa: F401
    scripts,  # noqa: F401
)
from engine_witness import environments
from hostile_modules import write_hostile_modules
from launching import MUSTER, PLAIN, Done, HostJob, run_in
from waiting import ending, wait_until

from muster.lab import Lab

pytestmark = NEEDS_SLURM


@pytest.fixture(scope="module")
def engine(shared: Path) -> Iterator[SlurmEngine]:
    with Lab(3, slurm=True, gpus={"h1": 2, "h2": 1}, bind=(shared,)) as lab:
        yield SlurmEngine(lab, shared)


# --- an allocation of one's own -------------------------------------------------------------------------------

OWN = ("--engine", "slurm", "--slurm-args", "-N2 -n2 --quiet", "--no-zygote", "--grace", "1")


def test_an_allocation_of_ones_own_is_taken_and_given_back(engine: SlurmEngine) -> None:
    done = run_in(engine.lab, "h1", engine.folder, *OWN, "who.py")
    assert [env["host"] for env in environments(done)] == ["h1", "h2"]
    gone(engine)


def test_nothing_is_imported_from_the_working_directory(engine: SlurmEngine, shared: Path) -> None:
    executed = write_hostile_modules(shared / "hostile")
    done = run_in(engine.lab, "h1", shared / "hostile", *OWN, "scripts/own.py")
    assert [done.lines(rank) for rank in (0, 1)] == [["from beside the script"]] * 2, done.said
    assert not executed.exists(), executed.read_text()
    gone(engine)


def test_the_code_of_a_failure_comes_through_the_allocation_of_ones_own(engine: SlurmEngine) -> None:
    own = ("--engine=slurm", "--slurm-args=-N3 -n3 --quiet", "--no-zygote", "--grace=0")
    done = run_in(engine.lab, "h1", engine.folder, *own, "fail.py", "exit3")
    assert done.code == 3, done.said
    assert "rank 2 on h3 failed first" in done.err
    gone(engine)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_an_allocation_of_ones_own_is_given_back_however_its_user_leaves(
    engine: SlurmEngine, number: signal.Signals, code: int
) -> None:
    job = HostJob(engine.lab, "h1", engine.folder, *OWN, "patient.py", "never")
    wait_until("the ranks", lambda: job.out.count("up ") == 2, 60, lambda: job.out + job.err)
    job.process.send_signal(number)
    gone(engine)
    done = job.wait(30)
    assert done.code == code, done.said
    if number != signal.SIGKILL:
        why = "Ctrl-C" if number == signal.SIGINT else number.name
        assert f"stopped by {why} after" in done.err, done.said


@pytest.fixture
def full(engine: SlurmEngine) -> Iterator[None]:
    """Every host is taken by somebody else."""
    number = engine.shell("sbatch --parsable -N3 --exclusive -o /dev/null --wrap 'sleep 1000'").strip()
    wait_until("the other job", lambda: engine.state(number).startswith("RUNNING"), 30)
    yield
    engine.shell(f"scancel {number}")


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_a_wait_in_the_queue_ends_when_its_user_leaves(engine: SlurmEngine, number: signal.Signals, code: int) -> None:
    loud = [word.replace(" --quiet", "") for word in OWN]
    job = HostJob(engine.lab, "h1", engine.folder, *loud, "train.py")
    wait_until("the queue", lambda: "Pending job allocation" in job.err, 30, lambda: job.err)
    job.process.send_signal(number)
    wait_until("an empty queue", lambda: len(engine.jobs()) == 1, 30, lambda: str(engine.jobs()))
    done = job.wait(30)
    assert done.code == code, done.said
    assert "Traceback" not in done.err
    assert done.out == ""


def test_ctrl_c_at_a_terminal_ends_the_ranks_in_order_and_gives_the_allocation_back(
    engine: SlurmEngine, shared: Path
) -> None:
    command = f"{MUSTER} run {' '.join(OWN[:2])} --slurm-args '-N2 -n2' --no-zygote listener.py never; echo code $?"
    screen = shared / "screen"
    with screen.open("wb") as out:
        terminal = engine.lab.popen(
            "h1",
            ["script", "-qec", f"cd {shared}; {command}", "/dev/null"],
            env={**PLAIN, "XDG_STATE_HOME": str(shared / "terminal"), "SHELL": "/bin/bash"},
            stdin=subprocess.PIPE,
            stdout=out,
        )
    with ending(terminal):
        assert terminal.stdin is not None
        wait_until("the ranks", lambda: screen.read_text().count("up\n") == 2, 60, screen.read_text)
        terminal.stdin.write(b"\x03")
        terminal.stdin.flush()
        terminal.wait(30)
    said = screen.read_text()
    assert len(re.findall(r"\].* KeyboardInterrupt$", said, re.MULTILINE)) == 1, said
    assert "printed the same traceback as rank" in said
    assert "Ctrl-C: stopping all ranks" in said
    assert "again: killing" not in said
    assert said.rstrip().endswith("code 130")
    gone(engine)


# --- what cannot work -----------------------------------------------------------------------------------------


@pytest.fixture
def on_login(engine: SlurmEngine) -> Callable[..., Done]:
    """`muster run` on h1, outside any allocation."""

    def run(*argv: str, **env: str) -> Done:
        return run_in(engine.lab, "h1", engine.folder, *argv, **env)

    return run


def bare_path(shared: Path) -> str:
    """A PATH without Slurm."""
    folder = shared / "no-slurm"
    folder.mkdir(exist_ok=True)
    for program in ("sh", "env"):
        if not (folder / program).exists():
            (folder / program).symlink_to(f"/bin/{program}")
    return str(folder)


def test_the_engine_is_refused_outside_an_allocation(on_login: Callable[..., Done]) -> None:
    done = on_login("--engine", "slurm", "train.py")
    check_refusal(done, 2, r"not inside a Slurm allocation \(SLURM_JOB_ID is not set\)", "--slurm-args")


def test_a_missing_salloc_is_reported(on_login: Callable[..., Done], shared: Path) -> None:
    done = on_login("--engine", "slurm", "--slurm-args", "-N2", "train.py", PATH=bare_path(shared))
    check_refusal(done, 125, "`salloc` not found on this machine", "login node")


def test_a_missing_srun_is_reported(engine: SlurmEngine, shared: Path) -> None:
    done = engine.run({"h1": 1}, "--no-zygote", "train.py", PATH=bare_path(shared))
    check_refusal(done, 125, "`srun` not found on this machine", "module")


@pytest.mark.parametrize("args", ["--partition=nowhere", "--no-such-option", "-N2 -w h1,h99", "-N1 --gpus=9"])
def test_a_request_that_slurm_refuses_is_reported(on_login: Callable[..., Done], args: str) -> None:
    done = on_login("--engine", "slurm", "--slurm-args", args, "train.py")
    assert done.code != 0, done.said
    assert done.err.startswith("salloc: "), done.said
    assert done.out == ""
    assert "Traceback" not in done.err


def test_slurm_args_with_open_quotes_are_refused(on_login: Callable[..., Done]) -> None:
    check_refusal(on_login("--slurm-args", '-N2 --comment="x', "train.py"), 2, "--slurm-args .* no closing", "quotes")


def test_slurm_args_for_another_engine_are_refused(on_login: Callable[..., Done]) -> None:
    check_refusal(
        on_login("--engine", "mpi", "--slurm-args", "-N2", "train.py"), 2, "needs --engine slurm, got mpi", "leave one"
    )


def test_slurm_args_inside_an_allocation_are_refused(engine: SlurmEngine) -> None:
    done = engine.run({"h1": 1}, "--slurm-args", "-N2", "train.py")
    check_refusal(done, 2, r"already inside allocation \d+", "omit --slurm-args")


def test_a_script_that_is_not_there_is_reported_before_the_queue(on_login: Callable[..., Done]) -> None:
    done = on_login("--engine", "slurm", "--slurm-args", "-N2", "trian.py")
    check_refusal(done, 2, r"script trian\.py not found", r"train\.py")
    assert "salloc" not in done.err


def test_a_host_that_is_not_in_the_allocation_is_refused(engine: SlurmEngine) -> None:
    done = engine.run({"h1": 1, "h2": 1}, "--engine", "slurm", "-H", "h2,h3", "train.py")
    check_refusal(done, 125, r"^h3: not part of Slurm allocation \d+, 2 hosts \(h1, h2\)", "omit -H")


def test_other_hosts_than_the_allocations_are_reached_by_ssh_and_this_is_reported(engine: SlurmEngine) -> None:
    done = engine.run({"h1": 1}, "--no-zygote", "-H", "h3:1", "who.py")
    assert [env["host"] for env in environments(done)] == ["h3"]
    assert re.search(r"detected: Slurm allocation \d+, 1 host; -H names hosts outside it, so Muster uses ssh", done.err)


def test_a_part_of_a_heterogeneous_job_is_refused(engine: SlurmEngine) -> None:
    done = engine.run({}, "-H", "h2", "train.py", request=["-N1", "-wh1", ":", "-N1", "-wh2"])
    check_refusal(done, 2, "-H names 1 of the 2 hosts of a heterogeneous job", "omit -H")


def test_more_ranks_than_slurm_gave_gpus_are_refused(engine: SlurmEngine) -> None:
    request = ["-N1", "-wh1", "--gpus-per-node=1"]
    done = engine.run({}, "--no-zygote", "--nproc", "2", "train.py", request=request, CUDA_VISIBLE_DEVICES=None)
    check_refusal(done, 125, "^h1: 2 ranks need 2 GPUs, but the host has 1", "h1:1")


def test_muster_under_srun_with_several_tasks_is_refused(engine: SlurmEngine, shared: Path) -> None:
    command = f"cd {shared}; XDG_STATE_HOME={shared}/srun srun -N2 -n2 {MUSTER} run train.py 2>&1"
    done = engine.lab.run("h1", ["env", "-i", f"PATH={PLAIN['PATH']}", "sh", "-c", command], timeout=60)
    assert done.returncode == 2
    assert done.stdout.count("error: this is one of the 2 tasks of step") == 2, done.stdout
    assert done.stdout.count("hint: start `muster run` once, without srun;") == 2, done.stdout
    assert "it ran" not in done.stdout


def test_muster_under_srun_with_one_task_runs_the_job(engine: SlurmEngine, shared: Path) -> None:
    command = f"salloc --quiet -N2 -w h2,h3 srun -N1 -n1 --overlap {MUSTER} run --no-zygote train.py"
    done = engine.shell(f"cd {shared}; export XDG_STATE_HOME={shared}/srun CUDA_VISIBLE_DEVICES=; {command}")
    assert sorted(done.splitlines()) == ["[h2 0] it ran", "[h3 1] it ran"]


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({"SLURM_JOB_NODELIST": None}, "SLURM_JOB_ID=.* is set but SLURM_JOB_NODELIST is not"),
        ({"SLURM_JOB_NODELIST": "h[1-"}, "SLURM_JOB_NODELIST"),
        ({"SLURM_TASKS_PER_NODE": "many"}, "SLURM_TASKS_PER_NODE"),
        ({"SLURM_TASKS_PER_NODE": "1(x9)"}, "SLURM_TASKS_PER_NODE=1.x9. lists the tasks of 9 hosts"),
        ({"SLURM_HET_SIZE": "two"}, "SLURM_HET_SIZE=two"),
    ],
    ids=["no hosts", "broken hosts", "broken tasks", "tasks of others", "broken groups"],
)
def test_variables_that_make_no_sense_are_refused(engine: SlurmEngine, env: dict[str, str | None], error: str) -> None:
    done = engine.run({"h1": 1, "h2": 1}, "--no-zygote", "train.py", **env)
    assert done.code == 2, done.said
    assert re.search(f"^error: .*{error}", done.err, re.MULTILINE), done.said
    assert "hint: " in done.err
    assert "Traceback" not in done.err


def test_an_allocation_that_is_over_is_reported(engine: SlurmEngine) -> None:
    env = {"SLURM_JOB_ID": "4711", "SLURM_JOBID": "4711"}
    done = engine.run({"h1": 1, "h2": 1}, "--no-zygote", "train.py", **env)
    check_refusal(done, 125, "[Ii]nvalid job id", "request a new one")
