"""The command lines of torchrun and python before `muster run`, with real ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launching import Done, run_here, run_in

from muster.lab import Lab

pytestmark = pytest.mark.timeout(120)

SCRIPT = """\
import os, sys
names = ("LOCAL_RANK", "WORLD_SIZE", "ROLE_NAME", "PYTHONUNBUFFERED")
print(*(os.environ.get(name) for name in names), __debug__, *sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "mod.py").write_text(SCRIPT)
    return tmp_path


def ran(folder: Path, *argv: str) -> Done:
    done = run_here(folder, "--no-zygote", "--no-check", *argv)
    assert done.code == 0, done.said
    return done


def sentences(done: Done) -> list[str]:
    """What Muster says of the command line."""
    return re.findall(r"^muster: ((?:ignoring|--nnodes|\S+ receives) .*)$", done.err, re.MULTILINE)


def test_a_command_line_of_torchrun_runs_as_it_is(folder: Path) -> None:
    options = ("--nproc_per_node=2", "--nnodes", "1", "--standalone", "--role", "trainer", "--tee", "3")
    done = ran(folder, "torchrun", *options, "train.py", "--lr", "1")
    assert done.lines(0) == ["0 2 trainer None True --lr 1"], done.said
    assert done.lines(1) == ["1 2 trainer None True --lr 1"], done.said
    assert len(sentences(done)) == 1, done.said
    assert sentences(done)[0].startswith("ignoring --tee: Muster keeps the output of every rank")


def test_quiet_silences_the_sentences(folder: Path) -> None:
    done = ran(folder, "--quiet", "torchrun", "--tee", "3", "--rdzv-id=7", "train.py", "--nproc", "4")
    assert (done.err, len(done.lines(0))) == ("", 1)


@pytest.mark.parametrize("python", ["python", "python3", sys.executable])
def test_a_command_line_of_python_runs_as_it_is(folder: Path, python: str) -> None:
    done = ran(folder, python, "-u", "-O", "train.py", "-O")
    assert done.lines(0) == ["0 1 default 1 False -O"], done.said
    assert ran(folder, python, "-m", "pkg.mod", "x").lines(0)[0].endswith("True x")


@pytest.mark.parametrize("start", ["--no-zygote", "--no-check"], ids=["fresh", "forked"])
def test_the_old_launcher_gives_each_script_its_local_rank(folder: Path, start: str) -> None:
    argv = ("python", "-m", "torch.distributed.launch", "--nproc-per-node", "2", "train.py", "--lr", "1")
    done = run_here(folder, start, *argv)
    assert done.code == 0, done.said
    for rank in (0, 1):
        assert done.lines(rank)[0].endswith(f"True --local-rank={rank} --lr 1"), done.said


def test_an_option_after_the_script_gets_a_hint_and_the_job_runs(folder: Path) -> None:
    done = ran(folder, "train.py", "--nproc", "4")
    assert done.lines(0)[0].endswith("True --nproc 4"), done.said
    assert sentences(done) == [
        "train.py receives --nproc as its own argument; put Muster's options before the script: "
        "muster run --no-zygote --no-check --nproc 4 train.py"
    ]
    (folder / "train.py").write_text('import argparse\np = argparse.ArgumentParser()\np.add_argument("--nproc")\n')
    assert sentences(ran(folder, "train.py", "--nproc", "4")) == []


def test_a_dry_run_explains_the_same(folder: Path) -> None:
    done = run_here(folder, "--dry_run", "torchrun", "--rdzv-backend=c10d", "train.py")
    assert done.code == 0, done.said
    assert sentences(done) == ["ignoring --rdzv-backend: Muster finds the address and port where ranks meet"]
    assert "ROLE_NAME=default" in done.out


def test_a_filter_for_local_ranks_that_no_host_has_is_refused(folder: Path) -> None:
    done = run_here(folder, "--no-zygote", "--nproc", "2", "--local-ranks-filter", "7", "train.py")
    assert done.code == 2, done.said
    assert "error: --local-ranks-filter matches no rank: each host has local ranks 0 to 1" in done.err


@pytest.mark.lab
def test_hosts_may_be_counted_again_and_local_ranks_chosen_on_each(cluster: Lab, shared: Path) -> None:
    (shared / "train.py").write_text(SCRIPT)
    options = ("--nnodes", "2", "--nproc_per_node", "2", "--local_ranks_filter", "1")
    done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h1,h2", "torchrun", *options, "train.py")
    assert done.code == 0, done.said
    assert (len(done.lines(1)), len(done.lines(3))) == (1, 1), done.said
    assert (done.lines(0), done.lines(2)) == ([], []), done.said
    wrong = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h1,h2", "torchrun", "--nnodes", "3", "train.py")
    assert wrong.code == 2, wrong.said
    assert "error: --nnodes 3: the job has 2 hosts" in wrong.err
