"""`muster run --engine mpi`: ranks below a real mpirun (Open MPI) and a real mpiexec.hydra (MPICH)."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_jobs import EngineJob, MpiEngine
from engine_promises import (
    WHO,
    Promises,
    check_refusal,
    gone,
    nothing_left,  # noqa: F401
    scripts,  # noqa: F401
    start_stubborn,
)
from engine_witness import (
    ONE_EACH,
    disturb,  # noqa: F401
    environments,
    witness,  # noqa: F401
    witness_env,  # noqa: F401
)
from launching import Done, run_in

from muster.lab import Lab
from muster.lab.system_programs import SYSTEM_PATH

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.getuid() != 0, reason="a host that loses power needs a lab started as root"),
    pytest.mark.skipif(
        not all(shutil.which(program, path=SYSTEM_PATH) for program in ("mpirun.openmpi", "mpiexec.hydra")),
        reason="apt-get install openmpi-bin mpich",
    ),
]

# MPI itself, by its C interface: in Open MPI handles are addresses of its objects, in MPICH numbers.
MPI = """
import ctypes, os, sys, time
if os.environ.get("OMPI_COMM_WORLD_SIZE"):
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    handle = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
    WORLD, INT, SUM = handle("ompi_mpi_comm_world"), handle("ompi_mpi_int"), handle("ompi_mpi_op_sum")
else:
    mpi = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
    WORLD, INT, SUM = ctypes.c_int(0x44000000), ctypes.c_int(0x4C000405), ctypes.c_int(0x58000003)
def ask(name):
    number = ctypes.c_int()
    getattr(mpi, name)(WORLD, ctypes.byref(number))
    return number.value
"""

# Each rank adds its own number to what MPI adds up.
SUM = (
    MPI
    + """
mpi.MPI_Init(None, None)
mine, total = ctypes.c_int(ask("MPI_Comm_rank") + 1), ctypes.c_int()
mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, INT, SUM, WORLD)
print("MPI says", ask("MPI_Comm_rank"), "of", ask("MPI_Comm_size"), "sum", total.value, "RANK", os.environ["RANK"])
# MPICH 4.0.2 hangs in MPI_Finalize, also below plain mpiexec, when its connections (UCX) are still being made.
for _ in range(10):
    mpi.MPI_Barrier(WORLD)
    time.sleep(0.05)
mpi.MPI_Finalize()
"""
)

# Rank 2 does what the argument says while the others wait for it. MPI waits by asking again and again, for seconds;
# this must not take the time of other tests.
BARRIER = (
    MPI
    + """
def stand_back():
    os.nice(19)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
mpi.MPI_Init(None, None)
mpi.MPI_Barrier(WORLD)
if ask("MPI_Comm_rank") == 2:
    time.sleep(0.1)
    if sys.argv[1] == "abort": mpi.MPI_Abort(WORLD, 7)
    import atexit
    atexit.register(mpi.MPI_Finalize)  # as mpi4py does; there it waits for the others
    atexit.register(stand_back)
    raise ValueError("bad sample in shard 7")
stand_back()
mpi.MPI_Barrier(WORLD)
"""
)


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    for name, text in (("sum", WHO + SUM), ("barrier", BARRIER)):
        (shared / f"{name}.py").write_text(text)
    with Lab(3, mpi=True, gpus={"h1": 2, "h2": 1}, bind=(shared,)) as lab:
        yield lab


@pytest.fixture(scope="module", params=["openmpi", "hydra"])
def engine(lab: Lab, shared: Path, request: pytest.FixtureRequest) -> MpiEngine:
    return MpiEngine(lab, shared, request.param)


@pytest.fixture(scope="module")
def uneven(engine: MpiEngine) -> EngineJob:
    """Different numbers of ranks on two hosts, which also use MPI."""
    job = engine.start({"h1": 2, "h2": 1}, "--no-zygote", "sum.py")
    job.wait()
    return job


BEFORE_ANY_MPIRUN = pytest.mark.parametrize("engine", ["openmpi"], indirect=True)
"""For what is refused before it is known which mpirun there is."""


class TestEveryEngine(Promises):
    """What holds on every engine."""


# --- MPI in the ranks -----------------------------------------------------------------------------------------


def check_sum(done: Done, size: int) -> None:
    """MPI has as many ranks as Muster, with the same numbers."""
    assert done.code == 0, done.said
    for rank in range(size):
        assert done.lines(rank)[1:] == [f"MPI says {rank} of {size} sum {size * (size + 1) // 2} RANK {rank}"]


def test_mpi_itself_works_in_the_ranks_and_counts_them_alike(uneven: EngineJob) -> None:
    check_sum(uneven.wait(), 3)


def test_mpi_counts_the_ranks_alike_if_the_last_host_has_most(engine: MpiEngine) -> None:
    check_sum(engine.run({"h1": 1, "h2": 1, "h3": 2}, "--no-zygote", "sum.py"), 4)


def test_an_exception_while_the_others_are_in_mpi_is_reported_and_ends_them(engine: MpiEngine) -> None:
    done = engine.run(ONE_EACH, "--no-zygote", "--grace", "1", "barrier.py", "raise")
    assert done.code == 1, done.said
    assert re.search(r"^muster: rank 2 on h3 failed first, .*: ValueError: bad sample in shard 7", done.err, re.M), (
        done.said
    )
    assert "Traceback (most recent call last):" in done.err.partition("failed first")[2]
    gone(engine)


def test_an_abort_of_mpi_is_attributed_to_its_rank(engine: MpiEngine) -> None:
    done = engine.run(ONE_EACH, "--no-zygote", "--grace", "1", "barrier.py", "abort")
    assert done.code == 7, done.said
    what = (
        "ended with exit code 7" if engine.name == "openmpi" else r"application called MPI_Abort\(MPI_COMM_WORLD, 7\)"
    )
    assert re.search(rf"^muster: rank 2 on h3 failed first, .*: ({what})", done.err, re.M), done.said
    assert "Traceback" not in done.err
    gone(engine)


def test_an_agent_that_is_killed_is_reported_with_its_host_although_mpirun_ends_all_others(engine: MpiEngine) -> None:
    job = start_stubborn(engine, "--grace", "1")
    commands = dict(engine.processes("h3"))
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in commands}
    # mpirun's own child looks the same: it has forked the agent.
    agent = next(pid for pid, above in parents.items() if commands.get(above) == commands[pid])
    os.kill(agent, signal.SIGKILL)
    done = job.wait(60)
    assert done.code == 125, done.said
    assert re.search(r"^muster: host h3 is lost: its agent was killed by SIGKILL$", done.err, re.M), done.said
    gone(engine)


@pytest.mark.parametrize(
    ("argv", "gpus"),
    [
        ("-H h1,h2:1", {"h1": [None, None], "h2": [None]}),
        ("-H h1:[1],h2:[0]", {"h1": ["1"], "h2": ["0"]}),
        ("", {"h1": [None, None]}),
    ],
    ids=["unequal", "chosen", "this machine"],
)
def test_gpus_are_counted_and_chosen_and_more_options_reach_mpirun(
    engine: MpiEngine, argv: str, gpus: dict[str, list[str | None]]
) -> None:
    args = "-x OF_MINE=a --allow-run-as-root" if engine.name == "openmpi" else "-genv OF_MINE a"
    options = (f"--mpi-args={args}", "--no-zygote", *argv.split())
    envs = environments(engine.run({}, *options, "who.py", CUDA_VISIBLE_DEVICES=None))
    found: dict[str, list[str | None]] = {}
    for env in envs:
        found.setdefault(env["host"], []).append(env.get("CUDA_VISIBLE_DEVICES"))
    assert found == gpus
    assert {env["OF_MINE"] for env in envs} == {"a"}


# --- what cannot work -----------------------------------------------------------------------------------------


def plain(engine: MpiEngine, *argv: str, **env: str) -> Done:
    """`muster run --engine mpi` with nothing beside what a test writes."""
    return run_in(engine.lab, "h1", engine.folder, "--engine", "mpi", *argv, **{"PATH": engine.path, **env})


def test_an_mpirun_that_refuses_root_is_reported(engine: MpiEngine) -> None:
    done = plain(engine, "--no-zygote", "-H", "h1:1,h2:1", "train.py")
    if engine.name == "openmpi":
        check_refusal(done, 125, "mpirun refuses to run as root", "--mpi-args=--allow-run-as-root")
    else:
        assert done.code == 0, "hydra does not mind"


def test_a_host_that_nobody_knows_is_reported_at_once(engine: MpiEngine) -> None:
    done = engine.run({"h1": 1, "gpu99": 1}, "--no-zygote", "train.py", timeout=40)  # hydra itself waits forever
    check_refusal(done, 125, "gpu99: ssh could not resolve this host name", "spelling")


def test_a_host_that_does_not_let_mpirun_in_is_reported(engine: MpiEngine) -> None:
    keys = "/run/muster-lab/authorized_keys"
    in_host(engine, "h3", f"mv {keys} {keys}.away; touch {keys}")
    try:
        done = engine.run(ONE_EACH, "--no-zygote", "train.py")
    finally:
        in_host(engine, "h3", f"mv {keys}.away {keys}")
    check_refusal(done, 125, "could not log in to a host by ssh", "ssh HOST true")


def in_host(engine: MpiEngine, host: str, command: str) -> None:
    done = engine.lab.run(host, ["sh", "-ec", command], timeout=40)
    assert done.returncode == 0, done.stderr


def test_a_host_that_is_dead_is_named(engine: MpiEngine) -> None:
    engine.lab.power_off("h3")
    done = engine.run(ONE_EACH, "--no-zygote", "train.py")
    check_refusal(
        done, 125, f"^{engine.lab.address('h3')}: ssh could not connect .(No route|Connection timed out)", "host is up"
    )


@BEFORE_ANY_MPIRUN
def test_a_remote_host_without_a_number_of_ranks_is_refused(engine: MpiEngine) -> None:
    check_refusal(
        plain(engine, "-H", "h1:1,h2", "train.py"), 2, "give the number of ranks per host: -H h2:N", "-H h2:8"
    )


@BEFORE_ANY_MPIRUN
def test_a_missing_mpirun_is_reported(engine: MpiEngine, shared: Path) -> None:
    (shared / "nothing").mkdir(exist_ok=True)
    done = engine.run({"h1": 1}, "train.py", PATH=str(shared / "nothing"))
    check_refusal(done, 125, "`mpirun` not found on this machine", "openmpi-bin")


@BEFORE_ANY_MPIRUN
def test_a_program_that_is_no_mpirun_is_refused(engine: MpiEngine, shared: Path) -> None:
    (shared / "fake").mkdir(exist_ok=True)
    (shared / "fake" / "mpirun").write_text("#!/bin/sh\necho SuperMPI 3\n")
    (shared / "fake" / "mpirun").chmod(0o755)
    done = plain(engine, "-H", "h1:1", "train.py", PATH=f"{shared}/fake:{engine.path}")
    check_refusal(done, 125, "prints `SuperMPI 3`, which is not Open MPI, MPICH or Intel MPI", "PATH")


def test_an_option_that_mpirun_does_not_know_is_reported(engine: MpiEngine) -> None:
    check_refusal(plain(engine, "--mpi-args", "--nonsense", "-H", "h1:1", "train.py"), 125, "nonsense", ".")


@BEFORE_ANY_MPIRUN
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--mpi-args", '--x "y'], "no closing quotation"),
        (["--restarts", "2"], "mpirun cannot restart its ranks"),
        (["--preload", "numpy"], "--preload"),
    ],
    ids=["open quotes", "restarts", "preload"],
)
def test_a_wrong_option_is_refused(engine: MpiEngine, options: list[str], error: str) -> None:
    check_refusal(plain(engine, *options, "-H", "h1:1", "train.py"), 2, error, ".")
