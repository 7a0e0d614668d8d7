"""The rank that the others wait for is named, in a real job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launching import Job
from waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.torch]

# Rank 1 becomes slow at step 8. tests/unit/test_straggler.py checks that ten steps are enough to report it, without
# other delays: the more the steps vary, as on a busy machine, the more of them are needed. Here it runs until then.
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.zeros(8, requires_grad=True)
optimiser = torch.optim.SGD([weight], 0.1)
for step in range(80):
    time.sleep(0.42 if rank == 1 and step >= 8 else 0.3)
    weight.sum().backward()
    told = torch.tensor([float(os.path.exists("told"))])
    both = torch.cat([weight.grad, told])
    dist.all_reduce(both)
    weight.grad.copy_(both[:8])
    optimiser.step()
    if rank == 0:
        print("step", step, time.time(), flush=True)
    if both[8]:
        break
dist.destroy_process_group()
"""
PATTERN = r"^muster: (rank .* is slowing the job down: .*)$"


def test_a_rank_that_becomes_slow_is_named_and_nobody_before(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    # torch.optim imports torch._dynamo: once, before the ranks are forked.
    with Job(tmp_path, "--nproc", "2", "--no-check", "--preload", "torch._dynamo", "train.py") as job:
        wait_until("a rank to be named", lambda: re.search(PATTERN, job.err, re.MULTILINE), 60, lambda: job.err)
        (tmp_path / "told").touch()
        done = job.wait(60)
    assert done.code == 0, done.said
    (said,) = re.findall(PATTERN, done.err, re.MULTILINE)
    words = r"rank 1 on \S+ is slowing the job down: (\S+) s per step vs\. (\S+) s \(\+\d+ %\)\. .*"
    match = re.fullmatch(words, said)
    assert match, said
    assert float(match[1]) > 0.4, said
    assert float(match[1]) - float(match[2]) > 0.05, said
    (report,) = json.loads((done.folder / "state.json").read_text())["reports"]
    assert (report["kind"], report["ranks"], report["sentence"]) == ("straggler", [1], said)
    ended = {int(line.split()[1]): float(line.split()[2]) for line in done.lines(0)}
    assert report["time"] > ended[8], done.said
