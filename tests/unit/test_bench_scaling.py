"""`muster bench --scaling`: rates, batches and ranks, and what the command line may say."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from in_process import muster

from muster.bench.scaling_curve import (
    Rate,
    Run,
    Scaling,
    batch_of,
    first_ranks,
    rank_counts,
    read_rate,
    sentences,
    table,
    with_batch,
)
from muster.cli.bench import parser
from muster.cli.scaling import work_of
from muster.errors import UsageError
from muster.hosts import Host, parse_hosts
from muster.own_python import module_argv


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("epoch 3: 1234.5 images/s, loss 0.1", Rate(value=1234.5, thing="images")),
        ("12,345 tokens per second", Rate(value=12345, thing="tokens")),
        ("throughput 1.5e3 samples/sec", Rate(value=1500, thing="samples")),
        ('{"images/s": 99.5, "epoch": 1}', Rate(value=99.5, thing="images")),
        ("images/s=7", Rate(value=7, thing="images")),
        ("images/s: 1,234.5 in the steps, 1,100.0 end to end (20 steps, 3 s)", Rate(value=1234.5, thing="images")),
        ("first 10 images/s then 20 images/s", Rate(value=20, thing="images")),
        ("1 image/s", Rate(value=1, thing="images")),
    ],
)
def test_a_rate_is_found_in_a_line(line: str, rate: Rate):
    assert read_rate(line) == rate


@pytest.mark.parametrize("line", ["", "loss 0.5", "saw 100 images", "reading at 120 MB/s", "4.2 it/s", "images/step 5"])
def test_what_is_no_rate_of_work_is_left_alone(line: str):
    assert read_rate(line) is None


def test_ranks_double_and_end_with_all_of_them():
    assert [rank_counts(total) for total in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_fewer_ranks_fill_the_hosts_in_their_order():
    hosts = parse_hosts("a:2,b:0,2,5")
    assert first_ranks(hosts, 1) == (Host(name="a", slots=1),)
    assert first_ranks(hosts, 3) == (Host(name="a", slots=2), Host(name="b", slots=1, gpus=(0,)))
    assert first_ranks(hosts, 5) == tuple(hosts)


@pytest.mark.parametrize(
    "args",
    [
        ["t.py", "--batch-size", "64", "-x"],
        ["t.py", "--batch-size=64", "-x"],
        ["t.py", "--batch_size", "64"],
        ["t.py", "--batch_size=64"],
    ],
)
def test_the_batch_is_read_and_replaced_as_it_was_written(args: list[str]):
    assert batch_of(args, "--batch-size") == 64
    assert " ".join(with_batch(args, "--batch-size", 16)) == " ".join(args).replace("64", "16")


def test_a_command_without_a_batch_has_none_and_a_strange_one_is_refused():
    assert batch_of(["t.py", "--batch", "3"], "--batch-size") is None
    with pytest.raises(UsageError, match="must be a positive integer, got `auto`"):
        batch_of(["t.py", "--batch-size", "auto"], "--batch-size")


def runs(*rates: tuple[str, int, float]) -> Scaling:
    made = [Run(kind=kind, ranks=n, hosts=1, batch=64, rate=rate) for kind, n, rate in rates]  # pyright: ignore
    return Scaling(command="t.py", thing="images", runs=tuple(made))


def test_efficiency_is_the_speedup_per_rank():
    scaling = runs(("weak", 4, 3000), ("weak", 1, 1000), ("strong", 4, 2000))
    assert scaling.curves() == {"weak": {1: 1.0, 4: 0.75}, "strong": {1: 1.0, 4: 0.5}}
    assert sentences(scaling) == [
        "Weak scaling: 4 ranks do 3.00 times the work of one (efficiency 75 %).",
        "Strong scaling: 4 ranks are 2.00 times as fast at the same work (efficiency 50 %).",
    ]
    assert table(scaling)[:4] == [
        "# weak scaling: same batch size on every rank",
        "#   ranks  hosts   batch      images/s   speedup  efficiency",
        "        1      1      64          1000      1.00     100.0 %",
        "        4      1      64          3000      3.00      75.0 %",
    ]


def test_an_impossible_efficiency_is_reported_as_a_disturbed_measurement():
    assert "measure again" in sentences(runs(("weak", 1, 100), ("weak", 2, 300)))[-1]
    assert len(sentences(runs(("weak", 1, 100), ("weak", 2, 205)))) == 1


def test_without_a_batch_there_is_only_weak_scaling():
    assert list(runs(("weak", 1, 10), ("weak", 2, 20)).curves()) == ["weak"]


# --- the command line -----------------------------------------------------------------------------------------


def test_a_recipe_is_named_as_muster_recipes_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    work = work_of(parser().parse_args(["--scaling", "hello", "--batch-size", "8"]))
    assert (work.command, work.module, work.batch) == (("muster.recipes.hello", "--batch-size", "8"), True, 8)
    (tmp_path / "hello").write_text("")
    assert work_of(parser().parse_args(["--scaling", "hello"])).command == ("hello",)


def test_strong_scaling_shares_the_batch_out_and_weak_scaling_does_not():
    work = work_of(parser().parse_args(["--scaling", "--split", "-b", "t.py", "-b", "64"]))
    assert work.words("weak", 4) == ["t.py", "-b", "64"]
    assert work.words("strong", 4) == ["t.py", "-b", "16"]


def bench(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(cwd / "state")}
    return muster("bench", *argv, cwd=cwd, env=env)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train.py"], "unexpected `train.py`"),
        (["--only", "all-reduce,nothing"], "must be some of all-reduce,"),
        (["--factor", "1"], "must be at least 2"),
        (["--min", "1G", "--max", "1M"], "is larger than the largest"),
        (["--scaling", "missing.py"], "script missing.py not found"),
        (["--scaling", "-m"], "no module given"),
        (["--max", "big"], "invalid size `big`"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(tmp_path: Path, argv: list[str], words: str):
    done = bench(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_dry_run_shows_the_plan_and_the_environment_of_the_ranks(tmp_path: Path):
    done = bench("--dry-run", "-H", "a:2,b:1", "--max", "64", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 ranks on 2 hosts" in done.stdout
    assert '"sizes": [8, 64]' in done.stdout


def test_slurm_args_become_salloc_around_the_same_command(tmp_path: Path):
    done = bench("--dry-run", "--slurm-args", "-N2", "--max", "64", cwd=tmp_path)
    assert done.stdout.startswith("salloc --job-name=muster-bench -N2 ")
    assert done.stdout.endswith(f"{shlex.join(module_argv('muster')[1:])} bench --dry-run --max 64\n")
