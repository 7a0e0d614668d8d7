"""The rank that the others wait for is named, in a real job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launching import run_here

pytestmark = [pytest.mark.lab, pytest.mark.torch]

# Rank 1 becomes slow at step 8.
SCRIPT = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.zeros(8, requires_grad=True)
optimiser = torch.optim.SGD([weight], 0.1)
for step in range(int(sys.argv[1])):
    time.sleep(0.42 if rank == 1 and step >= 8 else 0.3)
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    optimiser.step()
    if rank == 0:
        print("step", step, time.time())
"""


def test_a_rank_is_named_within_ten_steps_of_its_becoming_slow_and_nobody_before(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run_here(tmp_path, "--nproc", "2", "train.py", "19")
    assert done.code == 0, done.said
    (said,) = re.findall(r"^muster: (rank .* wait for: .*)$", done.err, re.MULTILINE)
    assert re.fullmatch(
        r"rank 1 on \S+ is the one the others wait for: its steps take 0\.[45]\d s where the others need 0\.[34]\d s "
        r"\(\d+ % slower\); .*",
        said,
    ), said
    (report,) = json.loads((done.folder / "state.json").read_text())["reports"]
    assert (report["kind"], report["ranks"], report["sentence"]) == ("straggler", [1], said)
    ended = {int(line.split()[1]): float(line.split()[2]) for line in done.lines(0)}
    steps = sum(ended[7] < time <= report["time"] for time in ended.values())
    assert steps <= 10, f"named after {steps} steps\n{done.said}"
