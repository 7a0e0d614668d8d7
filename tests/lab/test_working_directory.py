"""A working directory that another user can write to: no interpreter of Muster's imports anything from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_modules import write_hostile_modules
from launching import MUSTER, PLAIN, end_pages, run_here
from waiting import patience, wait_until

from muster.agent import dial_back
from muster.jobs.remote_package import STAGE
from muster.own_python import module_argv
from muster.shared import bootstrap

pytestmark = pytest.mark.lab


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """A directory with hostile files, and the user's script below it."""
    write_hostile_modules(tmp_path / "shared")
    return tmp_path / "shared"


def assert_nothing_ran(folder: Path) -> None:
    executed = folder.with_name("shared-executed")
    assert not executed.exists(), f"modules of the working directory ran: {executed.read_text()}"


RUNS = {
    "local": [],
    "fresh": ["--no-zygote"],
    "lab": ["--lab", "2", "--no-zygote", "--sync"],
    "mpi": ["--engine", "mpi", "-H", "localhost:1", "--no-zygote"],
    "salloc": ["--slurm-args=-N1", "--no-zygote"],
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_imports_nothing_from_the_working_directory(shared_folder: Path, options: list[str]) -> None:
    if "--lab" in options and os.getuid() != 0:
        pytest.skip("needs a lab started as root")
    if "mpi" in options and shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")
    programs = shared_folder.parent / "bin"
    programs.mkdir()
    (programs / "salloc").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (programs / "salloc").chmod(0o755)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env = {**root, "PATH": f"{programs}:{os.environ['PATH']}"}
    state = shared_folder.parent / "state"
    nproc = [] if "mpi" in options else ["--nproc", "1"]
    done = run_here(shared_folder, *nproc, *options, "scripts/own.py", state=state, **env)
    assert done.lines(0) == ["from beside the script"], done.said
    assert_nothing_ran(shared_folder)


def test_neither_detach_nor_the_dashboard_nor_a_check_import_from_the_working_directory(shared_folder: Path) -> None:
    state = shared_folder.parent / "state"
    options = ["--nproc", "1", "--no-zygote", "--detach", "--dashboard"]
    try:
        done = run_here(shared_folder, *options, "scripts/own.py", state=state)
        log = done.folder / "attempt-0" / "rank-0.log"
        wait_until("the job", lambda: log.exists() and log.read_text() == "from beside the script\n")
        assert run_here(shared_folder, command="ps", state=state).code == 0
        assert run_here(shared_folder, command="check", state=state).code in (0, 3)
    finally:
        end_pages(state)
    assert_nothing_ran(shared_folder)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a lab started as root")
def test_the_server_of_a_lab_imports_nothing_from_the_working_directory(shared_folder: Path) -> None:
    env = {**PLAIN, "XDG_STATE_HOME": str(shared_folder.parent / "state")}
    try:
        up = subprocess.run(
            [MUSTER, "lab", "up", "1"], cwd=shared_folder, env=env, capture_output=True, timeout=patience(100)
        )
        assert up.returncode == 0, up.stderr
    finally:
        subprocess.run([MUSTER, "lab", "down"], cwd=shared_folder, env=env, capture_output=True, timeout=patience(100))
    assert_nothing_ran(shared_folder)


@pytest.mark.parametrize("has_flag", [True, False] if sys.version_info >= (3, 11) else [False])
def test_the_command_of_a_submitted_job_imports_nothing_from_the_working_directory(
    shared_folder: Path, has_flag: bool
) -> None:
    argv = [*module_argv("muster", has_flag=has_flag), "--version"]
    done = subprocess.run(argv, cwd=shared_folder, env=PLAIN, capture_output=True, text=True, timeout=patience(60))
    assert done.stdout.startswith("muster ")
    assert_nothing_ran(shared_folder)


@pytest.mark.parametrize("code", [bootstrap.COMMAND, dial_back.COMMAND], ids=["piped", "dialing"])
def test_an_agent_and_a_remote_controller_import_nothing_from_the_working_directory(
    shared_folder: Path, code: str
) -> None:
    # Each ends with an error at once: the piped one when its input ends, the other because it has no order.
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=shared_folder, env=PLAIN, input=STAGE, capture_output=True, timeout=patience(60))
    assert done.returncode in (1, 125)
    assert_nothing_ran(shared_folder)
