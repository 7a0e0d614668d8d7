"""Unequal ranks: whatever the shares, the update is that of the whole batch on one process."""

from __future__ import annotations

import re

import pytest
from bare import script
from launching import run_here
from recipes import KEEP

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SAME_UPDATE = """
import copy, dataclasses
import muster, torch, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

torch.set_default_dtype(torch.float64)
with muster.init() as world:
    alone = dataclasses.replace(world, rank=0, size=1)
    torch.manual_seed(0)
    x, y = torch.randn(103, 6), torch.randint(0, 4, (103,))
    first = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    def train(model, net, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)
        losses = []
        while batches.epoch < 3:
            for batch in batches:
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x[batch.indices]), y[batch.indices]) * batch.weight
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    for shares in ((8, 2, 0), (1, 1, 1), (5.5, 1.25, 3), None):
        one, many = copy.deepcopy(first), copy.deepcopy(first)
        # The last batch of each epoch is smaller: 103 = 4 * 21 + 19.
        expected = train(one, one, muster.Batches(103, 21, alone, drop_last=False))
        batches = muster.Batches(103, 7, world, shares=shares, drop_last=False)
        mine = train(many, DistributedDataParallel(many), batches)
        worst = max((a - b).abs().max().item() for a, b in zip(one.parameters(), many.parameters()))
        assert worst < 1e-6, (shares, worst)
        sums = torch.tensor(mine)
        torch.distributed.all_reduce(sums)
        assert torch.allclose(sums / world.size, torch.tensor(expected))  # and so is the loss that is shown
        print("worst difference below 1e-12:", worst < 1e-12)
"""


def test_parameters_are_those_of_one_process_in_float64(tmp_path, kept):
    done = run_here(tmp_path, *KEEP, "--nproc", "3", "--quiet", script(tmp_path, SAME_UPDATE), state=kept)
    assert done.code == 0, done.said
    assert done.lines(0) == ["worst difference below 1e-12: True"] * 4


MEASURED = """
import time
import muster, torch
with muster.init() as world:
    times = []
    def work():  # rank 1 is slower by a factor of 3
        begin = time.perf_counter()
        time.sleep(0.03 if world.rank else 0.01)
        times.append((begin, time.perf_counter()))
    speeds = muster.measure_shares(world, work, seconds=0.3)
    batches = muster.Batches(1000, 50, world, shares=speeds)
    first = batches.rest_of_epoch()[0]
    assert abs(first.weight - len(first.indices) / 50) < 1e-9
    # The first call warms up. On a busy machine a sleep may take longer than it should, and that must be measured.
    paces = [0.0, 0.0]
    torch.distributed.all_gather_object(paces, (len(times) - 1) / (times[-1][1] - times[1][0]))
    everyone = [None, None]
    torch.distributed.all_gather_object(everyone, (len(first.indices), batches.mine(1001)))
    sizes, parts = zip(*everyone)
    assert sum(sizes) == 100 and abs(sizes[0] - 100 * paces[0] / sum(paces)) < 5, (sizes, paces)
    assert [i for part in parts for i in part] == list(range(1001))
"""


def test_measured_speeds_make_shares_and_an_evaluation_covers_all(tmp_path, kept):
    done = run_here(tmp_path, *KEEP, "--nproc", "2", "--quiet", script(tmp_path, MEASURED), state=kept)
    assert done.code == 0, done.said


TOGETHER = """
import sys, time, muster
try:
    with muster.init() as world:
        def work():
            if world.rank:
                raise muster.UsageError(f"rank {world.rank} has no data", hint="copy it there")
            return 7
        muster.together(world, work)
except muster.MusterError as error:
    time.sleep(0 if error.silent else 1)                   # others could have left by now
    sys.stderr.write(error.report())
    sys.exit(error.exit_code)
"""


def test_an_error_of_one_rank_ends_all_of_them_with_one_sentence(tmp_path, kept):
    done = run_here(tmp_path, *KEEP, "--nproc", "3", script(tmp_path, TOGETHER), state=kept)
    assert done.code == 2, done.said
    # Lines of ranks: the one that speaks is the first to end, and Muster shows its last words once more.
    assert re.search("rank 1 on .* failed first", done.err), done.said
    sentences = [line for line in done.err.splitlines() if line.startswith("[") and "error: " in line]
    assert [line.partition("] ")[2] for line in sentences] == ["error: rank 1 has no data"], done.said
    assert "Traceback" not in done.err
