"""Suggestions for a wrong command line are close in letters or meaning and never remove or kill anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from parsers_once import parsers_once

from muster.api.hints import COMMAND_MEANINGS, MEANINGS, misplaced, nearest
from muster.cli import COMMANDS, main, run
from muster.cli.lab import COMMANDS as LAB_COMMANDS
from muster.errors import UsageError

__all__ = ["parsers_once"]  # a fixture


def suggestion(*argv: str) -> str:
    """The hint of `muster run` with these options."""
    with pytest.raises(UsageError, match="unknown option") as refused:
        run.parse([*argv, "train.py"])
    return refused.value.hint or ""


# --- options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--nprok", "--nproc"),
        ("--nprocs", "--nproc"),
        ("--hostfil", "--hostfile"),
        ("--dryrun", "--dry-run"),
        ("--dry", "--dry-run"),
        ("--hang", "--hang-after"),
        ("--deatch", "--detach"),
        ("--interfaec", "--interface"),
    ],
)
def test_a_typing_error_is_recognized(typed: str, meant: str):
    assert suggestion(typed) == f"did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--timeout", "--hang-after"),
        ("--num-processes", "--nproc"),
        ("--num_gpus", "--nproc"),
        ("--ntasks-per-node", "--nproc"),
        ("--host", "--hosts"),
        ("--num_machines", "--hosts"),
        ("--machinefile", "--hostfile"),
        ("--main_process_port", "--master-port"),
        ("--export", "--env"),
        ("-x", "--env"),
        ("--silent", "--quiet"),
        ("--ui", "--dashboard"),
        ("--max-retries", "--restarts"),
        ("--nproc-per-nod", "--nproc"),
        ("--num_procesess", "--nproc"),
    ],
)
def test_an_option_of_another_launcher_is_recognized(typed: str, meant: str):
    assert suggestion(typed) == f"did you mean `{meant}`?"


@pytest.mark.parametrize("typed", ["--verbose", "--no-such-option", "--fp16", "-z", "--ma"])
def test_what_resembles_nothing_gets_no_suggestion(typed: str):
    assert suggestion(typed) == "`muster run --help` lists the options and shows examples"


def test_timeout_is_not_taken_for_image():
    assert nearest("--timeout", ["--image", "--engine"]) == ""


@pytest.mark.parametrize("typed", ["--running", "--prun", "--prunes", "--runing"])
def test_ps_does_not_suggest_to_remove_jobs(typed: str, capsys: pytest.CaptureFixture[str]):
    assert main(["ps", typed]) == 2
    said = capsys.readouterr().err
    assert "did you mean" not in said
    assert f"unknown option {typed}" in said


@pytest.mark.parametrize("typed", ["--force", "--noww", "--no"])
def test_stop_does_not_suggest_to_kill(typed: str, capsys: pytest.CaptureFixture[str]):
    assert main(["stop", "last", typed]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "typed", "meant"),
    [("stop", "--timeout", "--grace"), ("logs", "--only-rank", "--rank"), ("bench", "--nproc_per_node", "--nproc")],
)
def test_other_commands_suggest_what_they_have(
    command: str, typed: str, meant: str, capsys: pytest.CaptureFixture[str]
):
    assert main([command, *(["last"] if command != "bench" else []), typed]) == 2
    assert f"did you mean `{meant}`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "extra"),
    [
        (("--gres=gpu:8", "train.py"), "'--gres=gpu:8'"),
        (("--cpus-per-task", "16", "train.py"), "'--cpus-per-task=16'"),
        (("--exclusive", "train.py"), "'--exclusive'"),
        (("--qos", "high", "train.py"), "'--qos=high'"),
        (("-l", "select=2:ncpus=8", "train.py"), "'-l select=2:ncpus=8'"),
        (("-c16", "train.py"), "'-c16'"),
        (("--requeue",), ""),
    ],
)
def test_submit_passes_an_option_of_the_scheduler_with_extra(
    argv: tuple[str, ...], extra: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["submit", "--slurm", *argv]) == 2
    assert (f"--extra {extra}; " in capsys.readouterr().err) == bool(extra)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("-q", "--partition"),
        ("-A", "--account"),
        ("--job-name", "--name"),
        ("--gpus", "--gpus-per-node"),
        ("-t", "--time"),
    ],
)
def test_submit_knows_the_names_that_schedulers_use(typed: str, meant: str, capsys: pytest.CaptureFixture[str]):
    assert main(["submit", "--slurm", typed, "x", "train.py"]) == 2
    assert f"did you mean `{meant}`?" in capsys.readouterr().err


def test_an_option_that_help_does_not_list_is_not_suggested():
    assert suggestion("--rdzv-endpoin") == "`muster run --help` lists the options and shows examples"


def test_no_meaning_is_an_option_of_run_already():
    shown = set(run.parser().shown_options())
    assert [other for name, others in MEANINGS.items() if name in shown for other in others if other in shown] == []


# --- commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"), [("rnu", ""), ("logss", "logs"), ("status", "ps"), ("kill", "stop"), ("launch", "run")]
)
def test_a_command_of_another_tool_is_recognized(typed: str, meant: str, capsys: pytest.CaptureFixture[str]):
    assert main([typed]) == 2
    assert (f"did you mean `muster {meant}`?" in capsys.readouterr().err) == bool(meant)


def test_torchrun_without_run_gets_the_whole_command(capsys: pytest.CaptureFixture[str]):
    assert main(["torchrun", "--nproc-per-node", "2", "train.py"]) == 2
    assert "did you mean `muster run torchrun --nproc-per-node 2 train.py`?" in capsys.readouterr().err


def test_the_meanings_of_commands_are_commands():
    assert set(COMMAND_MEANINGS) <= set(COMMANDS)
    assert nearest("dwon", LAB_COMMANDS) == "down"


# --- options after the script ---------------------------------------------------------------------------------


def after_script(*args: str, text: str = "import torch\n", before: str = "", start: int | None = None) -> str:
    own, command = before.split(), ["train.py", *args]
    start = len(own) if start is None else start
    return misplaced(run.parser(), [*own, *command], command, text, start=start)


def test_an_option_of_muster_after_the_script_gets_a_hint_with_what_to_type():
    assert after_script("--lr", "0.1", "--nproc", "4") == (
        "train.py receives --nproc as its own argument; put Muster's options before the script: "
        "muster run --nproc 4 train.py ..."
    )
    assert after_script("--quiet", "--name", "a b", before="-np 2") == (
        "train.py receives --quiet, --name as its own arguments; put Muster's options before the script: "
        "muster run -np 2 --quiet --name 'a b' train.py"
    )
    hint = after_script("--quiet", "--lr", "1", before="-H a torchrun --standalone", start=2)
    assert hint.endswith(": muster run -H a --quiet torchrun --standalone train.py ...")


def test_the_hint_repeats_no_secrets():
    hint = after_script("--quiet", "--password=p", before="--env A_TOKEN=s --env=B_KEY=s --env C=3")
    assert hint.endswith("muster run --env A_TOKEN=... --env=B_KEY=... --env C=3 --quiet train.py ...")


def test_after_two_dashes_run_gives_no_hint_either():
    assert after_script("--quiet", before="-np 2 --") == ""


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (("--nproc=4",), "--nproc=4"),
        (("--nproc_per_node", "4"), "--nproc_per_node 4"),
        (("--dry_run", "x"), "--dry_run"),
        (("-H", "a,b"), "-H a,b"),
        (("-np", "2", "--quiet"), "-np 2 --quiet"),
        (("--nproc",), "--nproc"),
    ],
)
def test_it_shows_each_option_with_its_value(args: tuple[str, ...], shown: str):
    rest = " ..." if "x" in args else ""
    assert after_script(*args).endswith(f": muster run {shown} train.py{rest}")


@pytest.mark.parametrize(
    "text",
    ['parser.add_argument("--dry-run")', "parser.add_argument('--dry_run')", "def main(dry_run: bool): ..."],
)
def test_an_option_that_the_script_mentions_belongs_to_it(text: str):
    assert after_script("--dry-run", text=text) == ""
    assert after_script("--dry_run", text=text) == ""


@pytest.mark.parametrize("args", [(), ("--help",), ("--lr", "0.1"), ("nproc",), ("-m",), ("-n", "4"), ("-r", "1")])
def test_other_arguments_of_the_script_get_no_hint(args: tuple[str, ...]):
    assert after_script(*args) == ""


# --- other programs in the place of the script -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sentence", "left_out", "meant"),
    [
        ("run srun python train.py", "srun is a launcher", "srun python", "muster run train.py"),
        ("run srun train.py", "srun is a launcher", "srun", "muster run train.py"),
        (
            "run -H a,b mpirun -np 2 python -u train.py --lr 1",
            "mpirun is a launcher",
            "mpirun -np 2 python -u",
            "muster run -H a,b train.py --lr 1",
        ),
        ("run /usr/bin/mpiexec train.py", "mpiexec is a launcher", "/usr/bin/mpiexec", "muster run train.py"),
        ("run accelerate launch train.py", "accelerate is a launcher", "accelerate launch", "muster run train.py"),
        ("run deepspeed --num_gpus 2 train.py", "deepspeed is", "deepspeed --num_gpus 2", "muster run train.py"),
        ("run srun python -m pkg.train", "srun is a launcher", "srun python", "muster run -m pkg.train"),
        ("run srun hostname", "srun is a launcher", "srun", "muster run train.py"),
        (
            "submit --slurm --nproc 2 srun python train.py",
            "srun is",
            "srun python",
            "muster submit --slurm --nproc 2 train.py",
        ),
        (
            "run env A=1 python train.py",
            "env is a program, not a Python script",
            "env A=1 python",
            "muster run train.py",
        ),
    ],
)
def test_another_launcher_before_the_script_is_left_out(
    line: str, sentence: str, left_out: str, meant: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert f"hint: leave out `{left_out}`" in said
    assert said.endswith(f": `{meant}`\n")


@pytest.mark.parametrize("line", ["bash job.sh", "./job.sh", "sh -x job.sh 3"])
def test_a_shell_script_runs_muster_and_not_the_other_way_round(
    line: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
):
    (in_folder / "job.sh").write_text("python train.py\n")
    assert main(["run", *line.split()]) == 2
    said = capsys.readouterr().err
    assert "job.sh: Muster runs Python scripts, not shell scripts" in said
    assert "write `muster run train.py` into " in said
    assert "then run `bash " in said
    assert main(["submit", "--slurm", *line.split()]) == 2
    said = capsys.readouterr().err
    assert "write `muster run train.py` into " in said
    assert "with sbatch or qsub\n" in said


def test_a_python_script_may_have_the_name_of_a_program(in_folder: Path):
    (in_folder / "srun").write_text("print(1)\n")
    assert run.parse(["srun", "--lr", "1"])[1] == ["srun", "--lr", "1"]


def test_a_missing_script_is_not_called_a_program(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--dry-run", "missing.py"]) == 2
    assert "script missing.py not found" in capsys.readouterr().err


# --- options after the script of commands that would give a wrong result without them --------------------------


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import json, time\nprint(time.time())\n")
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("check", "train.py", "-H", "a,b"), "muster check -H a,b train.py"),
        (("check", "train.py", "--deep"), "muster check --deep train.py"),
        (("check", "train.py", "--lr", "0.1", "--lab=2"), "muster check --lab=2 train.py ..."),
        (("check", "-m", "no.such", "--hosts", "a"), "muster check -m --hosts a no.such"),
        (("submit", "--slurm", "train.py", "--time", "2h"), "muster submit --slurm --time 2h train.py"),
        (("submit", "--slurm", "train.py", "--nproc", "2"), "muster submit --slurm --nproc 2 train.py"),
        (("bench", "--scaling", "train.py", "--json"), "muster bench --scaling --json train.py"),
    ],
)
def test_check_submit_and_bench_refuse_an_option_of_theirs_after_the_script(
    argv: tuple[str, ...], shown: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(list(argv)) == 2
    said = capsys.readouterr().err
    assert f"put Muster's options before the script: {shown}\n" in said
    assert "write `--` before" in said


def test_after_two_dashes_every_option_is_the_scripts(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["submit", "--slurm", "--dry-run", "--", "train.py", "--time", "2h"]) == 0
    assert "train.py --time 2h" in capsys.readouterr().out


def test_an_option_that_the_script_reads_is_not_refused(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    (in_folder / "train.py").write_text("parser.add_argument('--time')\n")
    assert main(["submit", "--slurm", "--dry-run", "train.py", "--time", "2h"]) == 0


@pytest.mark.parametrize(
    ("argv", "code", "severity"),
    [
        (("train.py", "--data", "/no/such/set"), 3, "error"),
        (("train.py", "--data=./no-such-set"), 3, "error"),
        (("train.py", "--data", "no-such-set"), 0, "warning"),
        (("train.py", "--config", "/no/such/file"), 0, "warning"),
        (("--data", "/no/such/set", "train.py"), 3, "error"),
    ],
)
def test_check_gives_no_all_clear_when_the_data_of_the_script_is_missing(
    argv: tuple[str, ...], code: int, severity: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["check", *argv]) == code
    out = capsys.readouterr().out
    assert f"{severity}: " in out
    assert "no" in out
    assert "nothing wrong" not in out
