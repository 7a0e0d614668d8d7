"""`muster run --dry-run`: the plan and every command line, and nothing is started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import muster
from parsers_once import parsers_once

__all__ = ["parsers_once"]  # a fixture

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("raise SystemExit('a dry run runs nothing')\n")
    return tmp_path


def dry_run(folder: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **env}
    return muster("run", "--dry-run", *argv, cwd=folder, env=env)


def frozen(text: str, folder: Path) -> str:
    """The text without what differs from run to run and machine to machine."""
    text = re.sub(r"\d{8}-\d{6}-(\w+)-[0-9a-f]{4}", r"DATE-\1-NONCE", text)
    return text.replace(sys.executable, "PYTHON").replace(str(folder), "FOLDER")


def test_the_text_for_hosts_over_ssh_is_the_golden_one(folder: Path):
    done = dry_run(
        folder,
        "-H",
        "gpu[01-02]:2,root@box:0,3",
        "--env",
        "LR=0.1",
        "--restarts",
        "2",
        "--master-port",
        "29500",
        "train.py",
        "--lr",
        "0.1",
        NCCL_DEBUG="INFO",
        PATH_OF_MINE="/does/not/travel",
    )
    assert (done.returncode, done.stderr) == (0, "")
    # The interpreter beside `muster` may be named python or python3.
    text = re.sub(re.escape(str(Path(sys.executable).parent)) + r"/python[0-9.]*", "PYTHON", done.stdout)
    assert frozen(text, folder) == (GOLDEN / "dry_run_ssh.txt").read_text()


@pytest.mark.parametrize(("visible", "shown"), [("", ["-", "-"]), ("0", ["0", "-"]), ("0,1", ["0", "1"])])
@pytest.mark.parametrize("place", [(), ("--lab", "1")])
def test_only_gpus_that_exist_are_shown(folder: Path, place: tuple[str, ...], visible: str, shown: list[str]):
    done = dry_run(folder, *place, "--nproc", "2", "train.py", CUDA_VISIBLE_DEVICES=visible)
    assert [line.split()[3] for line in done.stdout.splitlines()[3:5]] == shown, done


def test_the_plan_is_data_on_stdout_and_nothing_is_written(folder: Path):
    done = dry_run(folder, "-H", "a:1,b:2", "train.py")
    assert done.returncode == 0
    assert done.stderr == ""
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_hosts_that_do_not_exist_are_not_asked(folder: Path):
    done = dry_run(folder, "-H", "no-such-host-anywhere:2", "train.py")
    assert done.returncode == 0
    assert "no-such-host-anywhere" in done.stdout


def test_a_host_whose_size_only_it_knows_is_an_error_that_says_what_to_write(folder: Path):
    done = dry_run(folder, "-H", "box", "train.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: box: --dry-run does not connect, so the number of GPUs is unknown")
    assert "hint: give the number of ranks: `box:8`" in done.stderr


def test_a_list_of_gpus_is_shown_per_rank(folder: Path):
    rows = re.findall(
        r"^ +(\d+)  big +(\d+)  (\d+)$", dry_run(folder, "-H", "big:5,2", "train.py").stdout, re.MULTILINE
    )
    assert rows == [("0", "0", "5"), ("1", "1", "2")]


def test_secrets_are_not_shown(folder: Path):
    done = dry_run(
        folder, "-H", "a:1", "--env", "MY_TOKEN=hunter2", "train.py", WANDB_API_KEY="s3cret", HF_TOKEN="t0ken"
    )
    assert "WANDB_API_KEY" in done.stdout
    assert "MY_TOKEN" in done.stdout
    assert not [secret for secret in ("hunter2", "s3cret", "t0ken") if secret in done.stdout + done.stderr]


def test_no_variable_is_on_a_command_line(folder: Path):
    done = dry_run(folder, "-H", "a:1", "--env", "LR=0.12345", "train.py", "--data", "some-argument")
    commands = done.stdout.partition("started here")[2]
    assert "ssh" in commands
    assert not [word for word in ("LR", "0.12345", "train.py", "some-argument") if word in commands]


def test_what_follows_the_script_belongs_to_the_script(folder: Path):
    done = dry_run(folder, "--nproc", "1", "train.py", "--nproc", "7", "-m", "--help", "--dry-run")
    assert done.returncode == 0
    assert "python train.py --nproc 7 -m --help --dry-run" in done.stdout


def test_a_module_is_shown_as_for_python(folder: Path):
    done = dry_run(folder, "--nproc", "1", "-m", "json.tool", "--indent", "2")
    assert "python -m json.tool --indent 2" in done.stdout


def test_the_zygotes_imports_are_named_or_that_there_is_none(folder: Path):
    assert "torch, torch.distributed, numpy" in dry_run(folder, "--nproc", "1", "--preload", "numpy", "train.py").stdout
    assert "no zygote" in dry_run(folder, "--nproc", "1", "--no-zygote", "train.py").stdout


def test_a_script_that_uses_ddp_preloads_what_ddp_needs(folder: Path):
    (folder / "ddp.py").write_text("from torch.nn.parallel import DistributedDataParallel as DDP\n")
    assert "torch._dynamo" in dry_run(folder, "--nproc", "1", "ddp.py").stdout
    assert "torch._dynamo" not in dry_run(folder, "--nproc", "1", "train.py").stdout


def test_a_lab_is_planned_without_being_made(folder: Path):
    done = dry_run(folder, "--lab", "3", "--nproc", "2", "train.py")
    assert done.returncode == 0
    assert "6 ranks on 3 hosts" in done.stdout
    assert "h3" in done.stdout


def test_a_lab_takes_numbers_of_ranks_for_its_own_hosts(folder: Path):
    done = dry_run(folder, "--lab", "3", "-H", "h1:1,h[2-3]:2", "train.py")
    assert "5 ranks on 3 hosts" in done.stdout, done.stderr


@pytest.mark.parametrize("host", ["h4", "gpu01:2", "ann@h1", "ssh://h1:22"])
def test_a_host_that_is_not_in_the_lab_is_refused(folder: Path, host: str):
    done = dry_run(folder, "--lab", "3", "-H", f"h1,{host}", "train.py")
    assert done.returncode == 2
    assert f"error: -H: {host} is not a host of --lab 3\n" in done.stderr
    assert "its hosts are h1 to h3" in done.stderr


def test_one_of_something_is_said_in_the_singular(folder: Path):
    assert "1 rank on 1 host\n" in dry_run(folder, "--nproc", "1", "train.py").stdout


def test_a_machine_without_gpus_shows_none(folder: Path):
    done = dry_run(folder, "--nproc", "2", "train.py", CUDA_VISIBLE_DEVICES="")
    rows = re.findall(r"^ +\d+  \S+ +\d+  (\S+)$", done.stdout, re.MULTILINE)
    assert rows == ["-", "-"]


def test_a_local_run_gets_a_rank_for_each_visible_gpu(folder: Path):
    assert "3 ranks on 1 host" in dry_run(folder, "train.py", CUDA_VISIBLE_DEVICES="0,1,2").stdout
