"""`muster run` in a real Slurm: in allocations of salloc and sbatch, and what Slurm does to it there."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_jobs import NEEDS_SLURM, EngineJob, Env, SlurmEngine
from engine_promises import (
    Promises,
    gone,
    nothing_left,  # noqa: F401
    scripts,  # noqa: F401
    start_stubborn,
)
from engine_witness import (
    ONE_EACH,
    Witness,
    disturb,  # noqa: F401
    environments,
    uneven,  # noqa: F401
    witness,  # noqa: F401
)
from launching import MUSTER, Done
from waiting import wait_until

from muster.lab import Lab
from muster.lab.system_programs import SYSTEM_PATH

pytestmark = NEEDS_SLURM

# Fails the first time, on one host.
FLAKY = """
import os, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if attempt == "0":
    if os.environ["RANK"] == "1": raise ValueError("not yet")
    time.sleep(30)
print("attempt", attempt)
"""

# Takes its time to end, since the warning and the end may come together, in any order.
WARNED = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.5)
    sys.exit(1)
signal.signal(signal.SIGUSR1, lambda number, frame: print("warned", flush=True))
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def engine(shared: Path) -> Iterator[SlurmEngine]:
    with Lab(3, slurm=True, gpus={"h1": 2, "h2": 1}, bind=(shared,)) as lab:
        yield SlurmEngine(lab, shared)


@pytest.fixture(scope="module", autouse=True)
def over_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SlurmEngine, EngineJob]]:
    """A job that reaches its time limit while other tests run: Slurm looks at the limits every 30 s only."""
    folder = tmp_path_factory.mktemp("limit")
    (folder / "warned.py").write_text(WARNED)
    with Lab(2, slurm=True, bind=(folder,)) as lab:
        engine = SlurmEngine(lab, folder)
        job = engine.batch({"h1": 1, "h2": 1}, "--no-zygote", "warned.py", request=("--time=60", "--signal=USR1@60"))
        job.wait_for("up", 2)
        # Two looks, after at most 70 s: in a single one, Slurm sends the warning and the end at once, in any order.
        engine.shell(f"scontrol update JobId={job.id} EndTime=now+40")
        yield engine, job


@pytest.fixture(scope="module")
def witness_env() -> Env:
    """The ranks see all GPUs that Slurm gave them: none."""
    return {"CUDA_VISIBLE_DEVICES": None}


class TestEveryEngine(Promises):
    """What holds on every engine."""


def slurm_ids(env: dict[str, str]) -> list[str]:
    names = ("PROCID", "LOCALID", "NODEID", "NTASKS", "NPROCS", "STEP_NUM_TASKS", "TASKS_PER_NODE")
    return [env[f"SLURM_{name}"] for name in names]


# --- what Slurm gives -----------------------------------------------------------------------------------------


def test_a_rank_finds_the_variables_of_a_task_of_srun(uneven: EngineJob) -> None:  # noqa: F811
    envs = environments(uneven.wait())
    assert [slurm_ids(env) for env in envs] == [
        ["0", "0", "0", "3", "3", "3", "2,1"],
        ["1", "1", "0", "3", "3", "3", "2,1"],
        ["2", "0", "1", "3", "3", "3", "2,1"],
    ]
    assert {env["SLURM_JOB_ID"] for env in envs} == {uneven.id}


def gpus_of(envs: list[dict[str, str]]) -> dict[str, list[str | None]]:
    """CUDA_VISIBLE_DEVICES of the ranks of each host."""
    found: dict[str, list[str | None]] = {}
    for env in envs:
        found.setdefault(env["host"], []).append(env.get("CUDA_VISIBLE_DEVICES"))
    return found


@pytest.mark.parametrize(
    ("request_", "gpus"),
    [
        ("-N1 -w h1 --gpus-per-node=2", {"h1": ["0,1", "0,1"]}),
        ("-N2 -w h1,h2 --gpus-per-node=1", {"h1": ["0"], "h2": ["0"]}),
        ("-N2 -w h1,h2 --gpus=3 -n4", {"h1": ["0,1", "0,1"], "h2": ["0"]}),
        ("-N2 -w h1,h2 --gpus-per-task=1 -n3", {"h1": ["0,1", "0,1"], "h2": ["0"]}),
        ("-N2 -w h1,h2 --gres=gpu:1", {"h1": ["0"], "h2": ["0"]}),
    ],
    ids=["all", "one each", "more tasks than GPUs", "by task", "gres"],
)
def test_the_gpus_that_slurm_gives_are_the_ranks(
    engine: SlurmEngine, request_: str, gpus: dict[str, list[str | None]]
) -> None:
    done = engine.run({}, "--no-zygote", "who.py", request=request_.split(), CUDA_VISIBLE_DEVICES=None)
    assert gpus_of(environments(done)) == gpus, done.said


def test_without_a_request_for_gpus_each_task_is_a_rank_without_one(witness: Witness) -> None:  # noqa: F811
    assert gpus_of(environments(witness.done, 130)) == {"h1": [None], "h2": [None], "h3": [None]}


RUNS = {
    "unequal": ("", {"h1": ["0,1", "0,1"], "h2": ["0"]}),
    "chosen": ("-H h1:[1],h2", {"h1": ["1"], "h2": ["0"]}),
    "one rank": ("-H h1:1", {"h1": ["0,1"]}),
}


def test_several_runs_in_one_allocation_choose_their_gpus_at_once_and_one_after_the_other(
    engine: SlurmEngine, shared: Path
) -> None:
    unequal, chosen, one = (
        f"({MUSTER} run --no-zygote {options} who.py > '{name}.out' 2> '{name}.err'; echo $? > '{name}.code')"
        for name, (options, _) in RUNS.items()
    )
    (shared / "runs.sh").write_text(f"cd {shared}; {unequal} & {chosen} & wait; {one}\n")
    engine.shell(f"salloc --quiet -N2 -wh1,h2 --gpus=3 env XDG_STATE_HOME={shared}/runs sh {shared}/runs.sh 2>&1")
    for name, (_, gpus) in RUNS.items():
        code, out, err = ((shared / f"{name}.{kind}").read_text() for kind in ("code", "out", "err"))
        done = Done(code=int(code), out=out, err=err, state=shared / "runs")
        assert gpus_of(environments(done)) == gpus, name


def test_a_gpu_that_another_job_has_is_not_ours(engine: SlurmEngine, shared: Path) -> None:
    other = engine.start({}, "--no-zygote", "patient.py", "gpu.flag", request=["-wh1", "--gpus-per-node=1"])
    other.wait_for("up")
    done = engine.run(
        *({}, "--no-zygote", "-H", "h1:[0]", "who.py"),
        request=["-wh1", "--gpus-per-node=1"],
        CUDA_VISIBLE_DEVICES=None,
    )
    assert [env["CUDA_VISIBLE_DEVICES"] for env in environments(done)] == ["1"], "the first of ours is the second there"
    (shared / "gpu.flag").touch()
    assert other.wait().code == 0


def test_some_hosts_of_the_allocation_can_be_chosen(engine: SlurmEngine) -> None:
    envs = environments(engine.run(ONE_EACH, "--no-zygote", "-H", "h3:2,h2", "who.py"))
    assert [(env["host"], env["SLURM_NODEID"]) for env in envs] == [("h3", "0"), ("h3", "0"), ("h2", "1")]


def test_a_heterogeneous_job_is_one_job(engine: SlurmEngine) -> None:
    request = ["-N1", "-wh1", "--gpus-per-node=2", ":", "-N2", "-n3", "-wh2,h3"]
    done = engine.run({}, "--no-zygote", "who.py", request=request, CUDA_VISIBLE_DEVICES=None)
    envs = environments(done)
    assert [env["host"] for env in envs] == ["h1", "h1", "h2", "h2", "h3"], done.said
    assert [env["SLURM_PROCID"] for env in envs] == ["0", "1", "2", "3", "4"]
    assert [env.get("CUDA_VISIBLE_DEVICES") for env in envs] == ["0,1", "0,1", None, None, None]
    assert "not awaited" not in done.err


def test_a_batch_job_ends_with_the_code_of_its_script(engine: SlurmEngine) -> None:
    job = engine.batch(ONE_EACH, "--no-zygote", "--grace", "0", "fail.py", "exit3")
    done = job.wait()
    assert done.code == 3, done.said
    assert f"detected: Slurm allocation {job.id}, 3 hosts" in done.err
    wait_until("the end of the job", lambda: engine.state(job.id) == "FAILED 3:0", 30, lambda: engine.state(job.id))


def test_a_controller_outside_its_hosts_and_what_was_asked_of_the_jobs_own_tasks_do_not_disturb_the_agents(
    engine: SlurmEngine,
) -> None:
    # As sbatch --export=NONE and others leave it in the environment.
    asked = {
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_LABELIO": "1",
        "SLURM_CPU_BIND": "verbose,mask_cpu:0x1",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_KILL_BAD_EXIT": "1",
        "SLURM_MPI_TYPE": "pmi2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_WAIT": "1",
    }
    done = engine.run({"h2": 2, "h3": 1}, "--no-zygote", "who.py", **asked)
    assert "[srun]" not in done.err, done.said
    place = engine.lab.address("h2")
    assert [(env["host"], env["MASTER_ADDR"]) for env in environments(done)] == [
        (host, place) for host in ("h2", "h2", "h3")
    ]


def test_a_failed_attempt_is_followed_by_another(engine: SlurmEngine, shared: Path) -> None:
    (shared / "flaky.py").write_text(FLAKY)
    done = engine.run({"h1": 1, "h2": 1}, "--no-zygote", "--grace", "0", "--restarts", "1", "flaky.py")
    assert done.code == 0, done.said
    assert "restart 1 of 1" in done.err
    assert sorted(done.out.splitlines()) == ["[h1 0] attempt 1", "[h2 1] attempt 1"]


def test_code_that_only_this_machine_has_is_sent(engine: SlurmEngine) -> None:
    engine.shell("mkdir -p /tmp/mine && echo 'import os; print(os.path.exists(\"mine.py\"))' > /tmp/mine/mine.py")
    line = f"cd /tmp/mine && CUDA_VISIBLE_DEVICES= salloc --quiet -N2 -n2 {MUSTER} run --no-zygote"
    refused = engine.lab.run("h1", ["sh", "-c", f"{line} mine.py"], timeout=60)
    assert refused.returncode == 125
    assert "error: h2: the working directory /tmp/mine does not exist" in refused.stderr
    assert "--sync" in refused.stderr.partition("hint: ")[2]
    done = engine.shell(f"{line} --sync mine.py")
    assert sorted(done.splitlines()) == ["[h1 0] True", "[h2 1] True"]


@pytest.mark.skipif(shutil.which("mpirun.openmpi", path=SYSTEM_PATH) is None, reason="apt-get install openmpi-bin")
def test_mpirun_runs_on_the_hosts_of_the_allocation(engine: SlurmEngine) -> None:
    options = ("--engine", "mpi", "--mpi-args=--allow-run-as-root", "--no-zygote")
    envs = environments(engine.run({"h1": 2, "h2": 1}, *options, "who.py"))
    assert [(env["host"], env["OMPI_COMM_WORLD_RANK"]) for env in envs] == [("h1", "0"), ("h1", "1"), ("h2", "2")]


# --- being ended by Slurm -------------------------------------------------------------------------------------


def test_scancel_is_reported_as_such_and_leaves_nothing(engine: SlurmEngine) -> None:
    job = engine.start(ONE_EACH, "--no-zygote", "patient.py", "never")
    job.wait_for("up", 3)
    engine.shell(f"scancel {job.id}")
    done = job.wait(30)
    assert done.code == 143, done.said
    assert f"\nmuster: Slurm ended job {job.id}: it was canceled (scancel)\n" in done.err, done.said
    assert "failed first" not in done.err, done.said
    gone(engine)


@pytest.mark.torch
def test_scancel_while_the_hosts_import_torch_is_reported_as_such(engine: SlurmEngine, shared: Path) -> None:
    (shared / "slow.py").write_text("import time\ntime.sleep(100)\n")  # torch alone may be faster than scancel
    job = engine.start(ONE_EACH, "--preload", "slow", "train.py")
    job.wait_for_word("importing torch")
    engine.shell(f"scancel {job.id}")
    done = job.wait(30)
    assert done.code == 125, done.said
    assert f"\nerror: Slurm ended job {job.id}: it was canceled (scancel)\n" in done.err, done.said
    assert "Traceback" not in done.err
    gone(engine)


def test_scancel_of_ranks_that_ignore_it_is_reported_as_such_and_leaves_nothing(engine: SlurmEngine) -> None:
    job = start_stubborn(engine, "--grace", "60")
    engine.shell(f"scancel {job.id}")
    gone(engine)
    done = job.wait(30)
    assert done.code in (125, 137), done.said
    last = done.err.splitlines()[-4:]
    assert f"muster: Slurm ended job {job.id}: it was canceled (scancel)" in last, done.said
    assert "sent by neither Muster nor" not in done.err, done.said


def test_scancel_of_a_batch_job_is_reported_as_such_although_its_shell_dies_first(
    engine: SlurmEngine, shared: Path
) -> None:
    script = f"#!/bin/bash\ncd {shared}\n{MUSTER} run --no-zygote listener.py never\n"
    (shared / "plain.sh").write_text(script)
    options = f"-N2 -n2 --export=ALL,CUDA_VISIBLE_DEVICES=,XDG_STATE_HOME={shared}/plain -o {shared}/plain.log"
    number = engine.shell(f"sbatch --parsable {options} {shared}/plain.sh").strip()
    log = shared / "plain.log"
    wait_until("the ranks", lambda: log.exists() and log.read_text().count("up\n") == 2, 60)
    engine.shell(f"scancel {number}")
    gone(engine)
    # From Slurm, and perhaps from the controller, which Slurm has signalled too.
    heard = set(re.findall(r"\[h\d (\d)\] heard SIGTERM", log.read_text()))
    assert heard == {"0", "1"}, log.read_text()
    assert re.search(rf"stopped by SIGTERM after .* \(Slurm ended job {number}: it was canceled", log.read_text()), (
        log.read_text()
    )


@pytest.mark.parametrize(
    "signals",
    # One run hears several signals only of different kinds: for a while, the same one counts as its echo.
    [{"USR1": "", "USR2": "--batch"}, {"USR1": "--full"}],
    ids=["steps, then batch script", "both"],
)
def test_a_signal_by_scancel_reaches_each_rank_once(engine: SlurmEngine, shared: Path, signals: dict[str, str]) -> None:
    flag = f"heard-{len(signals)}.flag"
    job = engine.batch(ONE_EACH, "--no-zygote", "listener.py", flag, bare=True)
    job.wait_for("up", 3)
    for name, how in signals.items():
        engine.shell(f"scancel {how} --signal={name} {job.id}")
        job.wait_for(f"heard SIG{name}", 3)
    time.sleep(0.5)  # for a second one, which must not come
    (shared / flag).touch()
    wait_until("its end", lambda: engine.state(job.id) == "COMPLETED 0:0", 60, lambda: job.said, every=0.4)
    for name in signals:
        assert job.out.count(f"heard SIG{name}") == 3, job.said
        forwarded = f"the ranks on h. received SIG{name} from Slurm|SIG{name}: forwarded to all ranks"
        assert re.search(forwarded, job.err), job.said


def test_ranks_that_end_in_good_order_when_slurm_ends_the_job_are_reported_as_such(engine: SlurmEngine) -> None:
    job = engine.start(ONE_EACH, "--no-zygote", "listener.py", "never")
    job.wait_for("up", 3)
    engine.shell(f"scancel {job.id}")
    done = job.wait(30)
    assert done.code == 0, done.said
    assert done.out.count("heard SIGTERM") == 3, done.said
    assert f"Slurm ended job {job.id}: it was canceled (scancel); all ranks ended normally" in done.err


# --- the time limit (last: it needs its time) -----------------------------------------------------------------


def test_the_time_limit_is_reported_as_such_and_the_warning_reaches_the_ranks(
    over_time: tuple[SlurmEngine, EngineJob],
) -> None:
    engine, job = over_time
    done = job.wait(90)
    assert done.out.count("warned") == 2, done.said
    assert re.search(rf"Slurm ended job {job.id}: it reached its time limit", done.err), done.said
    assert done.code == 143, done.said
    gone(engine)
    wait_until("TIMEOUT", lambda: engine.state(job.id).startswith("TIMEOUT"), 30, lambda: engine.state(job.id))
