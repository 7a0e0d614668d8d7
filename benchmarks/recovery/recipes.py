"""Recipes that lose a host in the middle of the training: the final weights must equal those of an undisturbed run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import BIN
from benchmarks.experiment import Failed
from benchmarks.recovery.faults import FAULT
from benchmarks.recovery.stage import Stage, Trial

TRAINING_LIMIT = 600.0

# Prints the names of parameters, statistics and optimizer states that differ; those of random number generators that
# no recipe uses do differ.
COMPARE = """
import sys, torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
states = []
for folder in sys.argv[1:]:
    dcp_to_torch_save(folder, folder + "/all.pt")
    states.append(torch.load(folder + "/all.pt", weights_only=False))
one, other = ({name: value for name, value in state.items() if name.startswith("state.")} for state in states)
assert any("model" in name for name in one), list(one)
same = {name for name in one.keys() & other.keys() if torch.equal(one[name], other[name])}
print(len(one), *sorted((one.keys() | other.keys()) - same))
"""


def training(stage: Stage, folder: Path, module: str, arguments: Sequence[str], *options: str) -> Trial:
    """Start a recipe that saves into the directory, and resumes from what is there."""
    # The number of threads changes the last bits. The zygotes import what every rank would import: DDP needs it. Hosts
    # that keep their power keep their zygotes for the next training on this stage.
    argv = [str(BIN / "muster"), "run", "--no-check", "--env", "OMP_NUM_THREADS=1", "--preload", "torch._dynamo"]
    argv += ["--keep", "5m", *options, "-m", module, *arguments, "--model_dir", str(folder), "--resume"]
    place = stage.folder / "trainings"
    place.mkdir(exist_ok=True)
    return stage.trial(place, {stage.controller: argv})


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, the newest last."""
    return sorted(file.parent for file in folder.glob("step-*/complete.json"))


def difference(stage: Stage, module: str, arguments: Sequence[str], victim: str, *, after: int, python: Path) -> str:
    """Run a recipe undisturbed, and again with a power cut after some checkpoints; what differs, or nothing.

    Both have two ranks: first on one host, then on two hosts with a spare. `python` compares the checkpoints.
    """
    whole, cut = (stage.new_folder() for _ in range(2))
    with training(stage, whole, module, arguments, "-H", f"{stage.workers[0]}:2") as trial:
        finish(trial)
    hosts = ",".join(f"{host}:1" for host in stage.workers[:3])
    with training(stage, cut, module, arguments, "--spares", "1", "-H", hosts) as trial:
        seen: set[Path] = set()

        def enough() -> bool:
            seen.update(checkpoints(cut))
            return len(seen) >= after

        trial.wait_for(f"{after} checkpoints", enough, TRAINING_LIMIT)
        FAULT["power"].strike(trial, victim)
        finish(trial)
        newest = max((trial.folder / "muster" / "jobs").iterdir(), key=lambda job: job.stat().st_ctime)
        if not (newest / "attempt-1").exists():
            raise Failed("the job ended before its host was lost")
    last, other = (checkpoints(folder)[-1] for folder in (whole, cut))
    if last.name != other.name:
        return f"the last checkpoints are {last.name} and {other.name}"
    said = subprocess.run([python, "-c", COMPARE, last, other], capture_output=True, text=True, timeout=120, check=True)
    count, *different = said.stdout.split()
    return f"{len(different)} of {count} tensors: {', '.join(different[:5])}" if different else ""


def finish(trial: Trial) -> None:
    """Wait until the training is over."""
    seconds, code = trial.controller.finish(TRAINING_LIMIT)
    if code:
        raise trial.controller.failed(f"ended with code {code} after {seconds:.0f} s")
