"""MPI in lab hosts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from muster.errors import LabError
from muster.lab import Lab, mpi_service
from muster.lab.system_programs import SYSTEM_PATH

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.getuid() != 0, reason="tests/lab/test_lab_without_root.py has this for others"),
    pytest.mark.skipif(
        None in [shutil.which(program, path=SYSTEM_PATH) for program in ("mpirun.openmpi", "mpiexec.hydra")],
        reason="apt-get install openmpi-bin mpich",
    ),
]

OPEN_MPI = ["mpirun", "--allow-run-as-root", "-H", "h1:2,h3:1"]
MPICH = ["mpiexec.hydra", "-hosts", "h1:2,h3:1", "-n", "3"]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3, mpi=True) as lab:
        yield lab


@pytest.mark.parametrize(
    ("launch", "rank"), [(OPEN_MPI, "OMPI_COMM_WORLD_RANK"), (MPICH, "PMI_RANK")], ids=["Open MPI", "MPICH"]
)
def test_each_mpi_starts_its_ranks_on_the_hosts_named(lab: Lab, launch: list[str], rank: str) -> None:
    clean = ["env", "-i", f"PATH={SYSTEM_PATH}", "timeout", "60"]
    done = lab.run("h2", [*clean, *launch, "sh", "-c", f"echo $(hostname) ${rank}"], timeout=70)
    assert sorted(done.stdout.splitlines()) == ["h1 0", "h1 1", "h3 2"], done.stderr


def test_plain_mpirun_is_open_mpi_whatever_the_machine_prefers(lab: Lab) -> None:
    for program in ("mpirun", "mpiexec"):
        assert "(Open" in lab.run("h1", [program, "--version"], timeout=30).stdout


def test_hosts_that_mpi_cannot_reach_are_an_error_with_its_output(lab: Lab) -> None:
    lab.block_port("h2", 22)
    with pytest.raises(LabError, match=r"mpirun could not start processes on h1:2,h2:2 from h1: (?s:.)*refused"):
        mpi_service.Mpi().wait(lab.names, lab.run)
    lab.heal("h2")
