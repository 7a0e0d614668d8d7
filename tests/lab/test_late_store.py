"""The store of a job with fresh ranks, which is started when a rank needs it, however late."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import run_here

pytestmark = pytest.mark.torch

SAVES_WITH_TORCH = """
import os, signal, sys, time

def save(number, frame):
    import torch
    print("saved", flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, save)
time.sleep(1000 if os.environ["RANK"] == "0" else 1)
sys.exit(7)
"""


@pytest.mark.timeout(150)
def test_a_rank_that_imports_torch_while_it_is_stopped_delays_no_end_and_is_not_blamed(tmp_path: Path):
    (tmp_path / "train.py").write_text(SAVES_WITH_TORCH)
    done = run_here(tmp_path, "--no-zygote", "--nproc", "2", "--grace", "1h", "train.py")
    assert done.code == 7, done.said
    assert "saved" in done.out
    assert "failed first" in done.err, done.said
