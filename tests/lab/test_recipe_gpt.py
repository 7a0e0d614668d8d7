"""Runs of the GPT recipe that continue with other ranks and another strategy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from launching import Done, run_here
from recipes import KEEP, wrong

from muster.training.metrics import read_rows

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

MODULE = "muster.recipes.gpt"
TINY = ["--layers=1", "--heads=2", "--width=32", "--context=16", "--batch=156", "--lr=0.01"]
TEXT = "".join(f"{i} times {i + 1} is {i * (i + 1)}.\n" for i in range(1000))
"""21 KB, in which much repeats."""


@pytest.fixture(scope="module")
def text(kept) -> Path:
    path = kept / "input.txt"
    path.write_text(TEXT)
    return path


def train(text: Path, ranks: int, *argv: str, strategy: str = "ddp") -> Done:
    """A run of the recipe; all runs share a kept zygote, because most of a run's time is the import of torch."""
    host = ("--quiet", "--no-check", *KEEP, "--preload=torch.distributed.fsdp", "--nproc", str(ranks))
    common = ("-m", MODULE, "--data", str(text), "--log_every=1", *TINY)
    argv = (*host, *common, "--strategy", strategy, *argv)
    return run_here(text.parent, *argv, state=text.parent, OMP_NUM_THREADS="1")


def losses(folder: Path) -> dict[float, float]:
    return {row["step"]: row["loss"] for row in read_rows(folder) if "loss" in row}


def rewind(run: Path, step: int, to: Path) -> list[str]:
    """Copy a run as it was after a step, and return the flags that continue it."""
    to.mkdir()
    shutil.copytree(run / f"step-{step:08d}", to / f"step-{step:08d}")
    return ["--out", str(to), "--resume"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_continues_with_other_ranks_and_another_strategy_where_it_stopped(text, tmp_path, optimizer):
    flags = ["--epochs=1", "--keep=9", "--optimizer", optimizer]
    done = train(text, 2, *flags, "--save_every=3", "--out", str(tmp_path / "fsdp"), strategy="fsdp")
    assert done.code == 0, done.said
    wanted = losses(tmp_path / "fsdp")
    assert list(wanted) == list(range(1, len(wanted) + 1))
    assert len(wanted) >= 8
    validation = done.lines(0)[-2].partition("validation")[2]
    # Muon orthogonalizes in bfloat16, so it magnifies rounding.
    near = {"abs": 2e-4 if optimizer == "adamw" else 2e-2}
    others = [(1, "ddp", ["--save_every=3"]), (4, "hsdp", ["--shard_ranks=2"])]
    if optimizer == "adamw":
        others += [(2, "ddp", []), (3, "fsdp", [])]
    for ranks, strategy, more in others:
        folder = tmp_path / f"{strategy}{ranks}"
        done = train(text, ranks, *flags, *more, *rewind(tmp_path / "fsdp", 3, folder), strategy=strategy)
        assert done.code == 0, done.said
        assert "from step 3" in done.lines(0)[0]
        continued = losses(folder)
        assert list(continued) == list(wanted)[3:]
        assert all(value == pytest.approx(wanted[step], **near) for step, value in continued.items()), (
            wanted,
            continued,
        )
        if optimizer == "adamw":
            assert float(done.lines(0)[-2].split()[4].rstrip(",")) == pytest.approx(
                float(validation.split()[1][:-1]), abs=3e-4
            )
    folder = tmp_path / "back"  # what DDP saved, sharded again; 3 ranks have parts of unequal size
    done = train(text, 3, *flags, *rewind(tmp_path / "ddp1", 6, folder), strategy="fsdp")
    assert done.code == 0, done.said
    assert all(value == pytest.approx(wanted[step], **near) for step, value in losses(folder).items())
    assert min(losses(folder)) == 7


def test_ranks_with_unequal_parts_of_the_last_batch_do_not_hang(text, tmp_path):
    short = text.with_name("short.txt")
    short.write_text(TEXT[: 117 * 16 + 1])  # 105 sequences to train on, 12 for validation
    flags = ["--epochs=1", "--keep=99"]
    done = train(short, 1, *flags, "--save_every=2", "--batch=21", "--out", str(tmp_path / "one"))
    assert done.code == 0, done.said
    # 42 sequences are done and 63 are left: a batch of 44, and one of 19 for ranks that take 9 at a time.
    flags += ["--batch=44", "--micro_batch=9", *rewind(tmp_path / "one", 2, tmp_path / "two")]
    done = train(short, 2, *flags, strategy="fsdp")
    assert done.code == 0, done.said
    assert max(losses(tmp_path / "two")) == 2 + 1 + 1


def test_it_learns_and_writes_what_it_has_learned(python, tmp_path):
    fox = tmp_path / "fox.txt"
    fox.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    done = python.run(MODULE, "--data", fox, "--out", tmp_path / "run", "--epochs=4", *TINY, "--batch=30")
    assert done.code == 0, done.err
    first, *_, last = [row for row in read_rows(tmp_path / "run") if "loss" in row]
    assert first["loss"] > 4
    assert last["loss"] < 0.8, done.out
    assert "validation loss 0." in done.out
    flags = ["--out", tmp_path / "run", "--prompt", "the lazy dog. ", "--tokens=19", "--temperature=0"]
    written = python.run(f"{MODULE}.generate", *flags)
    assert (written.code, written.err) == (0, "")
    assert written.out.startswith("the lazy dog. ")


def test_bad_data_and_flags_are_one_sentence(python, text, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("too short")
    wrong(python.run(MODULE, "--data", tmp_path / "none", *TINY), "cannot read --data", "No such file")
    wrong(python.run(MODULE, "--data", short, *TINY), "has 9 bytes")
    wrong(python.run(MODULE, "--data", text, *TINY, "--batch=99999"), "larger than the data set")
    wrong(python.run(MODULE, "--data", text, *TINY, "--strategy=hsdp", "--shard_ranks=2"), "do not form groups of 2")
    wrong(python.run(f"{MODULE}.generate", "--out", tmp_path / "none"), "has no checkpoints")


def test_a_run_is_neither_overwritten_nor_continued_with_another_model(python, text, tmp_path):
    flags = ["--data", text, "--out", tmp_path / "run", *TINY, "--epochs=1", "--batch=600"]
    assert python.run(MODULE, *flags).code == 0
    wrong(python.run(MODULE, *flags), "already has checkpoints")
    wrong(python.run(MODULE, *flags, "--resume", "--layers=2"), "layers 1", "layers 2")
    wrong(python.run(MODULE, *flags, "--resume", "--optimizer=muon"), "optimizer adamw", "optimizer muon")
    marker = next((tmp_path / "run").glob("step-*")) / "complete.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "files": {"gone": 1}}))
    done = python.run(f"{MODULE}.generate", "--out", tmp_path / "run")
    assert done.code == 2
    assert "gone is missing" in done.err


def test_a_batch_that_ranks_cannot_share_names_one_that_they_can(text):
    done = train(text, 2, "--batch=121")
    assert done.code != 0
    assert "error: --batch 121 is not a multiple of 2 ranks" in done.out + done.err
    assert "hint: use --batch 122" in done.out + done.err
