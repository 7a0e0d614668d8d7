"""Recipes that lose a host: the final weights are those of an undisturbed run, and no sample is lost or repeated."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare import script
from benchmarks.recovery.faults import FAULT
from benchmarks.recovery.recipes import difference
from benchmarks.recovery.stage import Stage
from recipes import write_cifar

pytestmark = [
    pytest.mark.lab,
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="a power cut needs a lab started as root"),
]


@pytest.fixture(scope="module")
def stage(shared: Path) -> Iterator[Stage]:
    with Stage(3, shared) as stage:
        yield stage


def test_mnist_ends_with_the_same_bits_after_a_power_cut(stage: Stage, warm: Path) -> None:
    arguments = ["--synthetic", "1200", "--epochs", "1", "--batch_size", "10", "--save_every", "4"]
    assert difference(stage, "muster.recipes.mnist", arguments, "h2", after=3, python=warm / "python3") == ""


def test_resnet_ends_with_the_same_bits_after_a_power_cut_of_the_first_host(
    stage: Stage, shared: Path, warm: Path
) -> None:
    write_cifar(shared / "cifar", 48, 20)
    # The stem for large images makes small ones smaller, and each step cheaper.
    arguments = ["--data", str(shared / "cifar"), "--arch", "resnet18", "--stem", "7x7", "--batch_size", "4"]
    arguments += ["--num_epochs", "2", "--save_every", "3"]
    assert difference(stage, "muster.recipes.resnet50", arguments, "h1", after=1, python=warm / "python3") == ""


# Records which samples each step used. 103 samples in batches of 9 and, after the loss, of 6: neither divides evenly.
EPOCH = """
import json, os, sys, time, torch, muster
from pathlib import Path

folder = Path(sys.argv[1])
with muster.init() as world, muster.Checkpoints(folder / "saved", world) as checkpoints:
    model = torch.nn.Linear(1, 1)
    batches = muster.Batches(103, 3, world, seed=1)
    state = {"model": model, "batches": batches}
    step = checkpoints.begin(state, resume=True)
    log = os.open(folder / "samples", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for batch in batches:
        torch.distributed.barrier()
        mine = batch.indices.tolist() if batch.weight else []
        os.write(log, (json.dumps([step, int(os.environ["TORCHELASTIC_RESTART_COUNT"]), mine]) + "\\n").encode())
        step += 1
        if step % 2 == 0:
            checkpoints.save(step, state)
        time.sleep(0.3)
"""


def test_after_shrinking_no_sample_of_the_epoch_is_repeated_or_skipped(stage: Stage, shared: Path) -> None:
    folder = stage.new_folder()
    hosts = ",".join(f"{host}:1" for host in stage.workers)
    options = ["--no-check", "-H", hosts, "--min-hosts", "2", "--preload", "torch.distributed.checkpoint"]
    argv = ["muster", "run", *options, script(folder, EPOCH), str(folder)]

    def records() -> list[tuple[int, int, list[int]]]:
        file = folder / "samples"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    with stage.trial(folder, {stage.controller: argv}) as trial:
        trial.wait_for("five steps", lambda: any(step >= 5 for step, _, _ in records()), 100)
        FAULT["power"].strike(trial, "h2")
        _, code = trial.controller.finish(100)
    assert code == 0, trial.words
    # Steps after the last checkpoint were done again, so only the last attempt of each counts.
    begun = {attempt: min(step for step, number, _ in records() if number == attempt) for attempt in (0, 1)}
    counted = [(step, mine) for step, attempt, mine in records() if attempt == 1 or step < begun[1]]
    assert begun[1] >= 2, "it resumed from a checkpoint"
    used = sorted(sample for _, mine in counted for sample in mine)
    assert len(used) == len(set(used)) == 99, "as many as in eleven batches of nine"
