"""The GPT recipe: its model, loss and tokenizer, and runs that continue with other ranks and another strategy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from launching import Done, run_here
from recipes import KEEP, wrong
from torch.nn.functional import cross_entropy, linear

from muster.recipes.gpt import cross_entropy as loss
from muster.recipes.gpt.data import Tokenizer, merge, train_tokenizer
from muster.recipes.gpt.model import GPT, Config
from muster.recipes.gpt.strategy import learning_rate
from muster.training.metrics import read_rows

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

MODULE = "muster.recipes.gpt"
SMALL = Config(vocabulary=64, context=16, layers=2, heads=2, width=32)
TINY = ["--layers=1", "--heads=2", "--width=32", "--context=16", "--batch=156", "--lr=0.01"]
TEXT = "".join(f"{i} times {i + 1} is {i * (i + 1)}.\n" for i in range(1000))
"""21 KB, in which much repeats."""


def gradients(model: GPT, tokens: torch.Tensor) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    value = model(tokens[:, :-1], tokens[:, 1:])
    value.backward()
    return value.item(), torch.cat([each.grad.flatten() for each in model.parameters()])


def test_gpt2_has_the_parameters_and_operations_that_nanogpt_counts():
    with torch.device("meta"):
        model = GPT(Config())
    assert sum(each.numel() for each in model.parameters()) == 124_373_760
    assert model.flops_per_token == 854_770_176


@pytest.mark.parametrize("at_once", [2**30, 64 * 7])
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(at_once, monkeypatch):
    monkeypatch.setattr(loss, "AT_ONCE", at_once)
    torch.manual_seed(0)
    x, weight = torch.randn(50, 32).requires_grad_(), torch.randn(64, 32).requires_grad_()
    targets = torch.randint(0, 64, (50,))
    wanted = cross_entropy(linear(x, weight), targets)
    exact = torch.autograd.grad(wanted, (x, weight))
    value = loss.linear_cross_entropy(x, weight, targets)
    torch.testing.assert_close(value, wanted)
    for mine, theirs in zip(torch.autograd.grad(3 * value, (x, weight)), exact, strict=True):
        torch.testing.assert_close(mine, 3 * theirs)
    with torch.no_grad():
        torch.testing.assert_close(loss.linear_cross_entropy(x, weight, targets), wanted)


def test_bfloat16_and_recomputing_change_no_more_than_rounding():
    torch.manual_seed(0)
    tokens, model = torch.randint(0, 64, (4, 17)), GPT(SMALL)
    value, exact = gradients(model, tokens)
    for config, bound in ((replace(SMALL, recompute=True), 1e-6), (replace(SMALL, precision=torch.bfloat16), 0.03)):
        other = GPT(config)
        other.load_state_dict(model.state_dict())
        its_value, its = gradients(other, tokens)
        assert its_value == pytest.approx(value, rel=bound)
        assert (its - exact).norm() < bound * exact.norm()


def test_no_token_sees_a_later_one():
    torch.manual_seed(0)
    model, tokens = GPT(SMALL), torch.randint(0, 64, (1, 16))
    with torch.no_grad():
        before = model(tokens[:, :9])
        tokens[0, 9:] = 0
        assert torch.equal(model(tokens[:, :9]), before)
        tokens[0, 8] = (tokens[0, 8] + 1) % 64
        assert not torch.equal(model(tokens[:, :9]), before)


def test_byte_pairs_are_merged_most_frequent_first_and_decode_to_the_same_text():
    text = TEXT.encode()
    tokenizer = train_tokenizer(text, 300)
    assert len(tokenizer.merges) == 44
    tokens = tokenizer.encode(text)
    assert len(tokens) < 0.6 * len(text)
    assert b"".join(tokenizer.decode(int(token)) for token in tokens) == text
    assert [int(token) for token in Tokenizer().encode(b"\x00\xff")] == [0, 255]
    assert b" times " in [tokenizer.decode(256 + i) for i in range(44)]


def test_of_overlapping_pairs_the_first_is_merged():
    assert merge(torch.tensor([1, 1, 1, 2, 1, 1, 1, 1]), [1, 1], 9).tolist() == [9, 1, 2, 9, 9]
    assert merge(torch.tensor([1, 2, 1, 2, 1]), [1, 2], 9).tolist() == [9, 9, 1]


def test_the_learning_rate_rises_then_falls_to_a_tenth():
    at = [learning_rate(i / 100, 0.1) for i in range(101)]
    assert (at[0], at[5]) == (0, pytest.approx(0.5))
    assert at[10] == pytest.approx(1)
    assert at[100] == pytest.approx(0.1)
    assert all(later < earlier for earlier, later in pairwise(at[10:]))
    assert learning_rate(0.0, 0.0) == pytest.approx(1)


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
