"""`muster submit` as a user types it: with programs that answer as sbatch and qsub do, or do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import muster

from muster.engines.slurm.batch import Slurm
from muster.errors import MusterError
from muster.submit import queue
from muster.submit.request import Activation, Request

MUSTER = str(Path(sys.executable).with_name("muster"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    """A program in the only folder of PATH; it keeps the script it is given."""
    file = folder / "bin" / name
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder / "bin"), "HOME": str(folder)}


def submitted(folder: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return muster("submit", *argv, cwd=folder, env={**environment(folder), **env})


def a_request(folder: Path) -> Request:
    activation = Activation(comment="None.")
    return Request(typed=(), run=("train.py",), name="train", folder=str(folder), activation=activation)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("bin", "train.py"))


def check(done: subprocess.CompletedProcess[str], code: int, error: str, hint: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    found = re.fullmatch(r"error: (.+)\n\nhint: (.+)\n", done.stderr)
    assert found, done.stderr
    assert re.search(error, found[1])
    assert re.search(hint, found[2])


def test_a_submitted_job_says_its_id_and_what_to_do_about_it(folder: Path):
    program(folder, "sbatch", '[ "$1" = --parsable ] || exit 9; /bin/cat "$2" > seen; echo note >&2; echo 4711\n')
    argv = [MUSTER, "submit", "--slurm", "--name", "big", "--nodes", "2", "train.py", "--lr", "0.1"]
    env = environment(folder)
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "4711\n")
    assert done.stderr == (
        "note\n"
        "submitted job 4711; its batch script is big-4711.sbatch\n"
        "  squeue -j 4711        show its state: PD (pending, with the reason) or R (running)\n"
        "  tail -F big-4711.out  follow its output (the file appears once it runs)\n"
        "  scancel 4711          cancel it\n"
    )
    assert files(folder) == ["big-4711.sbatch", "seen"]
    assert (folder / "big-4711.sbatch").read_text() == (folder / "seen").read_text()
    assert (folder / "big-4711.sbatch").stat().st_mode & 0o077 == 0


def test_a_job_of_pbs_says_its_id_and_what_to_do_about_it(folder: Path):
    program(folder, "qsub", '/bin/cat "$1" > seen; echo 12.pbssrv\n')
    done = submitted(folder, "--pbs", "train.py")
    assert (done.returncode, done.stdout) == (0, "12.pbssrv\n")
    assert "  qdel 12.pbssrv " in done.stderr
    assert "  tail -F train.o12 " in done.stderr
    assert (folder / "train-12.pbs").read_text() == (folder / "seen").read_text()


def test_a_dry_run_prints_the_script_and_writes_nothing(folder: Path):
    done = submitted(folder, "--slurm", "--dry-run", "--", "train.py", "--dry-run")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH ")
    assert done.stdout.endswith("\nexec muster run -- train.py --dry-run\n")
    assert "# Written by: muster submit --slurm -- train.py --dry-run\n" in done.stdout
    assert files(folder) == []


def test_an_argument_that_is_not_utf_8_survives(folder: Path):
    argv = [MUSTER, "submit", "--slurm", "--dry-run", "train.py", b"\xff\xfe"]
    done = subprocess.run(argv, cwd=folder, env={"HOME": str(folder)}, capture_output=True, timeout=100)
    assert done.stdout.endswith(b"exec muster run train.py '\xff\xfe'\n")


def test_a_link_in_the_path_of_the_folder_stays_one(folder: Path):
    (folder / "link").symlink_to(folder)
    done = submitted(folder, "--slurm", "--dry-run", "train.py", PWD=str(folder / "link"))
    assert f"\ncd {folder}/link || exit\n" in done.stdout
    for wrong in ("/", "/nope", "link"):
        assert f"\ncd {folder} || exit\n" in submitted(folder, "--slurm", "--dry-run", "train.py", PWD=wrong).stdout


def test_a_refusal_is_reported_with_the_message_of_sbatch(folder: Path):
    words = "sbatch: error: Batch job submission failed: Invalid partition name specified"
    program(folder, "sbatch", f"echo '{words}' >&2; exit 1\n")
    done = submitted(folder, "--slurm", "train.py")
    check(done, 125, "^sbatch rejected the job: Batch job submission failed: Invalid partition name", "sinfo -s")
    assert files(folder) == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("qsub: Unknown queue", "qstat -Q"),
        ("qsub: Job violates queue and/or server resource limits", "qstat -Qf"),
        ("qsub: illegal -N value", "shorter --name"),
        ("qsub: illegal -k value", "--extra '-k n'"),
        ("no words that anybody knows", "--dry-run"),
        ("", "--dry-run"),
    ],
)
def test_a_refusal_of_pbs_has_a_hint(folder: Path, words: str, hint: str):
    program(folder, "qsub", f"echo '{words}' >&2; exit 2\n")
    check(submitted(folder, "--pbs", "train.py"), 125, "^qsub rejected the job: .", hint)


def test_an_answer_without_an_id_is_reported(folder: Path):
    program(folder, "sbatch", "echo 'Job 7 to start at noon' >&2\n")
    check(submitted(folder, "--slurm", "train.py"), 125, "no job id: Job 7 to start at noon", "--dry-run")
    assert files(folder) == []


def test_a_program_that_does_not_answer_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch):
    program(folder, "sbatch", "exec /bin/sleep 60\n")
    monkeypatch.setattr(queue, "ANSWER_LIMIT", 0.3)
    request = a_request(folder)
    with pytest.raises(MusterError, match="the job may be queued") as late:
        queue.submit("#!/bin/sh\n", request, Slurm(), {"PATH": str(folder / "bin")})
    assert late.value.hint == "check with `squeue --me` before you submit again"
    assert files(folder) == []


def test_a_missing_scheduler_is_reported(folder: Path):
    check(submitted(folder, "--slurm", "train.py"), 125, "`sbatch` is not installed on this machine", "--dry-run")
    check(
        submitted(folder, "--pbs", "train.py"),
        125,
        "`qsub` is not installed on this machine",
        "that can submit PBS jobs",
    )


def test_the_qsub_of_slurm_is_not_taken_for_that_of_pbs(folder: Path):
    program(folder, "qsub", "#  This file is part of Slurm, a resource management program.\necho 5\n")
    check(submitted(folder, "--pbs", "train.py"), 125, "belongs to Slurm", "use --slurm")
    assert files(folder) == []


@pytest.mark.parametrize(
    ("programs", "hint"),
    [
        ((), "for example"),
        (("sbatch",), "sbatch: add --slurm"),
        (("qsub",), "qsub: add --pbs"),
        (("sbatch", "qsub"), "for"),
    ],
)
def test_without_a_scheduler_the_one_that_is_here_is_named(folder: Path, programs: tuple[str, ...], hint: str):
    for name in programs:
        program(folder, name, "echo 1\n")
    check(submitted(folder, "train.py"), 2, "^no scheduler given, add --slurm, --pbs or --k8s$", hint)


def test_a_folder_that_cannot_be_written_is_reported(folder: Path):
    program(folder, "sbatch", "echo 1\n")
    request = a_request(folder / "gone")
    with pytest.raises(MusterError, match=r"gone: could not write the batch script \(No such file"):
        queue.submit("", request, Slurm(), {"PATH": str(folder / "bin")})


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (["tarin.py"], "script tarin.py not found", "did you mean `train.py`"),
        ([], "no script to run", "muster submit --slurm"),
        (["--node", "2", "train.py"], "unknown option --node", "did you mean `--nodes`"),
        (["--nprok", "2", "train.py"], "unknown option --nprok", "did you mean `--nproc`"),
        (["--zzz", "train.py"], "unknown option --zzz", "--help"),
        (["--nodes"], "--nodes needs a value", "--help"),
        (["--nodes", "0", "train.py"], "must be a whole number of at least 1, got `0`", "--help"),
        (
            ["--nproc", "x", "train.py"],
            "muster run: .*must be a whole number of at least 1, got `x`",
            "muster run --help",
        ),
        (["-H", "a,b", "train.py"], "-H cannot be used with `muster submit`", "--nodes"),
        (["--lab", "2", "train.py"], "--lab cannot be used", "muster run --lab"),
        (["--env", "NOT_SET", "train.py"], "NOT_SET is not set on this machine", "--env NOT_SET=VALUE"),
        (["--nnodes=2", "train.py"], "--nnodes 2: the batch job requests 1 node", "--nodes 2"),
        (
            ["--nodes=1", "torchrun", "--nnodes", "2", "train.py"],
            "--nnodes 2: the batch job requests 1 node",
            "--nodes 2",
        ),
        (["--time", "never", "train.py"], "--time never", "2h"),
        (["--mem", "8", "train.py"], "--mem 8", "200G"),
        (["--venv", "nowhere", "train.py"], "--venv nowhere: no such directory", "bin/activate"),
        (["--extra", "exclusive", "train.py"], "--extra 'exclusive'", "#SBATCH"),
        (["--partition", "a b", "train.py"], "--partition 'a b'", "without spaces"),
    ],
)
def test_a_mistake_is_found_before_anything_is_submitted(folder: Path, argv: list[str], error: str, hint: str):
    program(folder, "sbatch", "echo 1 > seen; echo 1\n")
    check(submitted(folder, "--slurm", *argv), 2, error, hint)
    assert files(folder) == []


def test_an_empty_environment_is_enough(folder: Path):
    # An empty environment, as cron has it.
    argv = [MUSTER, "submit", "--slurm", "--dry-run", "train.py"]
    done = subprocess.run(argv, cwd=folder, env={}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"\ncd {os.path.realpath(folder)} || exit\n" in done.stdout
