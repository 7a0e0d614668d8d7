"""The batch script: its text, and that bash runs exactly what was typed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engines.pbs.batch import Pbs
from muster.engines.slurm.batch import Slurm
from muster.submit.batch_script import write_script
from muster.submit.batch_units import Memory
from muster.submit.request import Activation, Request
from muster.submit.scheduler import Scheduler

GOLDEN = Path(__file__).parents[1] / "golden"

VENV = Activation(
    comment="The virtual environment that `muster submit` ran in.", line="source /home/ann/venv/bin/activate"
)
SMALL = Request(
    typed=("--slurm", "train.py"), run=("train.py",), name="train", folder="/home/ann/project", activation=VENV
)
BIG = Request(
    typed=("--slurm", "--nodes", "4", "train.py", "--lr", "0.1", "--note", "it's\nme"),
    run=("--grace", "30", "train.py", "--lr", "0.1", "--note", "it's\nme"),
    name="big",
    folder="/home/ann/my project",
    activation=VENV,
    nodes=4,
    gpus_per_node=8,
    memory=Memory(amount=200, unit="G"),
    seconds=36 * 3600,
    queue="gpu",
    account="abc",
    modules=("cuda/12.4", "nccl"),
    extra=("--exclusive", "--constraint='a100&nvlink'"),
)
GADI = replace(
    SMALL,
    typed=("--pbs", "train.py"),
    seconds=2 * 3600,
    queue="gpuvolta",
    extra=("-P ab12", "-l ncpus=96,ngpus=8,mem=760GB", "-l storage=gdata/ab12,wd"),
)


@pytest.mark.parametrize(
    ("golden", "request_", "scheduler"),
    [
        ("submit_slurm.sbatch", BIG, Slurm()),
        ("submit_slurm_small.sbatch", SMALL, Slurm()),
        ("submit_pbs.pbs", replace(BIG, typed=("--pbs", *BIG.typed[1:]), extra=("-m ae",), variables=("KEY",)), Pbs()),
        ("submit_pbs_sums.pbs", GADI, Pbs()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_script_is_the_golden_one(golden: str, request_: Request, scheduler: Scheduler):
    scheduler.check(request_)
    text = write_script(request_, scheduler)
    assert text == (GOLDEN / golden).read_text()
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=100)
    assert (checked.returncode, checked.stderr) == (0, "")


# --- what bash makes of it ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A directory with a `muster` that prints its working directory and its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        muster = Path(folder, "muster")
        muster.write_text('#!/bin/sh\nprintf "%s\\0" "$PWD" "$@"\n')
        muster.chmod(0o755)
        yield Path(folder)


AWKWARD = st.text(alphabet="ab -'\"$`\\\n\r\t!*?#~;&|<>()[]{}=%^,é\x01\x7f", max_size=12)
BYTES = st.binary(max_size=12).map(lambda data: os.fsdecode(data.replace(b"\0", b"")))
# What is left without the slashes may be the bytes of a letter, which Python then decodes.
NAMES = (
    (AWKWARD | BYTES)
    .map(lambda text: os.fsdecode(os.fsencode(text.replace("/", ""))))
    .filter(lambda text: text not in ("", ".", ".."))
)
WORDS = st.lists(
    AWKWARD | BYTES | st.sampled_from(["--nproc", "#SBATCH --nodes=9", "$(touch /nope)", "EOF"]), max_size=9
)


def ran(text: str, folder: Path, programs: Path) -> list[str]:
    script = folder / "job.sh"
    script.write_bytes(os.fsencode(text))
    checked = subprocess.run(["bash", "-n", script], capture_output=True, timeout=100)
    assert (checked.returncode, checked.stderr) == (0, b"")
    done = subprocess.run(
        ["bash", script],
        cwd="/",
        env={"PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8"},
        capture_output=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


@settings(max_examples=25)
@given(words=WORDS, scheduler=st.sampled_from([Slurm(), Pbs()]))
def test_muster_gets_exactly_what_was_typed(words: list[str], scheduler: Scheduler, programs: Path):
    with tempfile.TemporaryDirectory() as folder:
        activation = Activation(comment="None.")
        run = ("train.py", *words)
        request = replace(BIG, modules=(), activation=activation, folder=folder, run=run, typed=run)
        text = write_script(request, scheduler)
        assert ran(text, Path(folder), programs) == [folder, "run", *run]
        # sbatch refuses DOS line breaks, and a directive hidden in an argument must stay an argument.
        assert "\r" not in text
        assert [line for line in text.partition("\n\n")[2].splitlines() if line.startswith(scheduler.mark)] == []


@settings(max_examples=25)
@given(name=NAMES)
def test_the_job_runs_in_the_folder_whatever_its_name_is(name: str, programs: Path):
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, name)
        os.mkdir(folder)
        request = replace(SMALL, activation=Activation(comment="None."), folder=folder)
        assert ran(write_script(request, Slurm()), Path(parent), programs)[0] == folder


def test_a_long_command_line_is_folded_with_options_and_values_together(programs: Path, tmp_path: Path):
    run = ("--env", "A=" + "x" * 60, "--env", "B=" + "y" * 60, "train.py", "--data", "/some where", "--epochs", "90")
    request = replace(SMALL, activation=Activation(comment="None."), folder=str(tmp_path), run=run)
    text = write_script(request, Slurm())
    body = text.partition("exec muster")[2].splitlines()
    assert body[1] == f"    --env A={'x' * 60} \\"
    assert body[-1] == "    --epochs 90"
    assert ran(text, tmp_path, programs)[1:] == ["run", *run]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (replace(SMALL, activation=Activation(comment="Gone.", line="source /nope/bin/activate")), 1),
        (replace(SMALL, activation=Activation(comment="None."), folder="/nope"), 1),
        (replace(SMALL, activation=Activation(comment="None."), modules=("nope",)), 127),
    ],
    ids=["environment", "folder", "module"],
)
def test_a_step_that_fails_ends_the_job_before_muster_starts(
    broken: Request, code: int, programs: Path, tmp_path: Path
):
    request = replace(broken, folder=broken.folder if broken.folder == "/nope" else str(tmp_path))
    (tmp_path / "job.sh").write_text(write_script(request, Slurm()))
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", tmp_path / "job.sh"], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "nope" in done.stderr or "module" in done.stderr


def test_modules_are_found_where_only_login_shells_know_them(programs: Path, tmp_path: Path):
    (tmp_path / ".bash_profile").write_text(f'PATH="{programs}:$PATH"; module() {{ echo "$@" >> ~/loaded; }}\n')
    request = replace(SMALL, activation=Activation(comment="None."), folder=str(tmp_path), modules=("cuda/12", "a b"))
    script = tmp_path / "job.sh"
    script.write_text(write_script(request, Pbs()))
    script.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([script], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "loaded").read_text() == "load cuda/12\nload a b\n"


def test_muster_takes_the_place_of_the_shell(tmp_path: Path):
    # Otherwise a signal for the batch script would end the shell, and Muster would hear nothing of it.
    muster = tmp_path / "muster"
    muster.write_text("#!/bin/sh\necho $$\n")
    muster.chmod(0o755)
    request = replace(SMALL, activation=Activation(comment="None."), folder=str(tmp_path))
    (tmp_path / "job.sh").write_text(write_script(request, Slurm()))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with subprocess.Popen(["bash", tmp_path / "job.sh"], env=env, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.communicate(timeout=100)[0] == f"{shell.pid}\n"
