"""Which Python a submitted job runs in, tried with bash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.engines.slurm.batch import Slurm
from muster.errors import UsageError
from muster.own_python import module_argv
from muster.submit.activation import named_activation, own_activation
from muster.submit.batch_script import write_script
from muster.submit.request import Activation, Request


def fake_muster(folder: Path) -> None:
    """A `muster` that says which Python environment is active."""
    file = folder / "bin" / "muster"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('#!/bin/sh\necho "$0 $* ${VIRTUAL_ENV:-$CONDA_PREFIX}"\n')
    file.chmod(0o755)


def ran(activation: Activation, folder: Path) -> str:
    request = Request(typed=(), run=("train.py",), name="train", folder=str(folder), activation=activation)
    (folder / "job.sh").write_text(write_script(request, Slurm()))
    done = subprocess.run(
        ["bash", folder / "job.sh"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "my venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    fake_muster(folder)
    return folder


def test_the_virtual_environment_of_muster_is_that_of_the_job(venv: Path, tmp_path: Path):
    activation = own_activation(f"{venv}/bin/python", str(venv), "/usr", {})
    assert activation.comment == "The virtual environment that `muster submit` ran in."
    assert ran(activation, tmp_path) == f"{venv}/bin/muster run train.py {venv}"


def test_a_named_virtual_environment_is_activated(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    activation = named_activation("my venv", {})
    assert ran(activation, tmp_path) == f"{venv}/bin/muster run train.py {venv}"


def make_conda(root: Path, environment: Path) -> None:
    """The files of conda that matter here; its `activate` does what conda's does for a script."""
    for folder in (root, environment):
        (folder / "conda-meta").mkdir(parents=True, exist_ok=True)
        fake_muster(folder)
    (root / "bin" / "activate").write_text('unset nothing; export CONDA_PREFIX="$1" PATH="$1/bin:$PATH"\n')


@pytest.mark.parametrize("named", [False, True], ids=["own", "named"])
@pytest.mark.parametrize("told", [False, True], ids=["beside", "CONDA_EXE"])
def test_a_conda_environment_is_activated_by_its_conda(named: bool, told: bool, tmp_path: Path):
    root, environment = tmp_path / "conda", tmp_path / ("elsewhere" if told else "conda/envs") / "torch"
    make_conda(root, environment)
    env = {"CONDA_EXE": str(root / "bin" / "conda")} if told else {}
    activation = (
        named_activation(str(environment), env)
        if named
        else own_activation("python", str(environment), str(environment), env)
    )
    assert activation.line == f"source {root}/bin/activate {environment}"
    assert ran(activation, tmp_path) == f"{environment}/bin/muster run train.py {environment}"


def test_a_conda_environment_without_conda_is_put_first(tmp_path: Path):
    environment = tmp_path / "micromamba" / "torch"
    (environment / "conda-meta").mkdir(parents=True)
    fake_muster(environment)
    activation = own_activation("python", str(environment), str(environment), {})
    assert ran(activation, tmp_path) == f"{environment}/bin/muster run train.py {environment}"


def test_without_an_environment_the_same_interpreter_runs_it(tmp_path: Path):
    python = tmp_path / "py thon"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    activation = own_activation(str(python), "/usr", "/usr", {})
    assert ran(activation, tmp_path) == f"{' '.join(module_argv('muster')[1:])} run train.py"


def test_a_named_environment_that_cannot_be_used_is_refused(tmp_path: Path, venv: Path):
    with pytest.raises(UsageError, match="no such directory"):
        named_activation(str(tmp_path / "nope"), {})
    with pytest.raises(UsageError, match="Muster is not installed") as refused:
        named_activation(str(tmp_path), {})
    assert refused.value.hint == "give the directory that contains bin/activate"
    (venv / "bin" / "muster").unlink()
    with pytest.raises(UsageError, match="Muster is not installed") as refused:
        named_activation(str(venv), {})
    assert f"'{venv}/bin/pip' install ." in (refused.value.hint or "")
    fake_muster(tmp_path / "bare")
    with pytest.raises(UsageError, match="bin/activate is missing"):
        named_activation(str(tmp_path / "bare"), {})
