"""The end of `with muster.init()`, whatever still holds its process group."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import run_here

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.timeout(120)]

# Each return drops a DDP model that holds the group, milliseconds after its last collective.
MODELS_THAT_OUTLIVE_THEIR_WORLD = """
import torch
import muster

def train():
    with muster.init():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        for _ in range(20):
            model(torch.randn(64, 4)).mean().backward()

for _ in range(12):
    train()
print("ended")
"""


def test_a_model_may_outlive_the_world_it_was_trained_in(tmp_path: Path):
    (tmp_path / "train.py").write_text(MODELS_THAT_OUTLIVE_THEIR_WORLD)
    done = run_here(tmp_path, "--nproc", "3", "train.py", timeout=110)
    assert done.code == 0, done.said
    assert done.out.count("ended") == 3
