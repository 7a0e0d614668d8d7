"""A script for one GPU on several ranks: all of them train alone, and Muster says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import run_here

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

WARNING = "2 ranks trained independently: train.py never called init_process_group"
TRAIN = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
JOIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
# The optimizer imports torch._dynamo, which takes half as long as torch: in a zygote that all runs share, once.
SHARED = ("--keep=5m", "--preload=torch._dynamo")
OTHER_LIBRARY = "import sys, types\nsys.modules['mpi4py'] = types.ModuleType('mpi4py')\n"


@pytest.mark.parametrize("start", [SHARED, ("--no-zygote",)], ids=["zygote", "fresh"])
def test_ranks_that_train_without_a_process_group_get_one_warning(tmp_path: Path, kept: Path, start: tuple[str, ...]):
    (tmp_path / "train.py").write_text(TRAIN)
    done = run_here(tmp_path, *start, "--nproc", "2", "train.py", state=kept if start is SHARED else None)
    assert done.code == 0, done.said
    assert done.err.count(f"muster: {WARNING}, so each did the same work\n") == 1, done.said
    assert 'muster: hint: see "From one GPU to DDP" (docs/ddp.md)\n' in done.err


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (JOIN + TRAIN, ["--nproc", "2"]),
        (TRAIN + JOIN, ["--nproc", "2"]),
        (OTHER_LIBRARY + TRAIN, ["--nproc", "2"]),
        (TRAIN, ["--nproc", "1"]),
        (TRAIN, ["--nproc", "2", "--quiet"]),
        ("import torch\n", ["--nproc", "2"]),
    ],
    ids=["joined", "joined later", "mpi4py", "one rank", "quiet", "no training"],
)
def test_other_ranks_get_none(tmp_path: Path, kept: Path, text: str, options: list[str]):
    (tmp_path / "train.py").write_text(text)
    done = run_here(tmp_path, *SHARED, *options, "train.py", state=kept)
    assert done.code == 0, done.said
    assert "trained independently" not in done.err, done.said
