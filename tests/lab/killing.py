"""A training that is killed at random moments and resumed, until it has been killed often enough.

    python killing.py FOLDER KILLS SEED

One process imports torch; each attempt forks two ranks from it, which takes milliseconds. Every run that comes to
its end must end with the very loss of a run that nobody killed. Prints one JSON object.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport] - DDP imports it: here once, not in each fork
import torch.distributed.checkpoint  # pyright: ignore[reportUnusedImport]
from bare import reserved_port
from torch.nn.parallel import DistributedDataParallel

import muster
from muster.training import checkpoint_folders

STEPS, EVERY, RANKS = 19, 3, 2


def train(rank: int, folder: Path, port: int) -> None:
    """Train a small model with all that a checkpoint has to bring back: momentum, statistics, position, dropout."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with muster.init(timeout=30) as world, muster.Checkpoints(folder / "saved", world, keep=2) as checkpoints:
        torch.manual_seed(7 + rank)
        data = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        batches = muster.Batches(len(data), 8, world, seed=3)
        state = {"model": model, "optimizer": optimizer, "schedule": schedule, "batches": batches}
        step = checkpoints.begin(state, resume=True)
        note(folder, rank, f"begin {step}")
        loss = torch.zeros(())
        while step < STEPS:
            for batch in batches:
                x = data[batch.indices]
                optimizer.zero_grad()
                loss = (ddp(x + 0.1 * torch.randn_like(x)).squeeze(1) - x.sum(1)).square().mean()
                (loss * batch.weight).backward()
                optimizer.step()
                schedule.step()
                step += 1
                if step % EVERY == 0:
                    checkpoints.save(step, state)
                    note(folder, rank, f"save {step}")
                if step == STEPS:
                    break
        checkpoints.close()
        weights = torch.cat([p.detach().double().flatten() for p in model.state_dict().values()]).sum().item()
        note(folder, rank, f"end {loss.item()!r} {weights!r}")


def note(folder: Path, rank: int, line: str) -> None:
    with (folder / f"notes-{rank}").open("a") as file:
        file.write(line + "\n")


def notes(folder: Path, word: str, rank: int = 0) -> list[str]:
    path = folder / f"notes-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.partition(" ")[2] for line in lines if line.startswith(word)]


def attempt(folder: Path, life: float, *, from_the_fork: bool = True) -> tuple[bool, float]:
    """Fork the ranks and kill them after `life` seconds, counted from the fork or from the first step.

    Returns whether they came to their end before, and how many seconds after the first step that was.
    """
    with reserved_port() as port:
        return _attempt(folder, life, port, from_the_fork=from_the_fork)


def _attempt(folder: Path, life: float, port: int, *, from_the_fork: bool) -> tuple[bool, float]:
    begun = len(notes(folder, "begin"))
    children = [fork(rank, folder, port) for rank in range(RANKS)]
    ended: dict[int, int] = {}
    forked = time.monotonic()
    first_step = forked if from_the_fork else 0.0
    while len(ended) < RANKS and not (first_step and time.monotonic() > first_step + life):
        assert time.monotonic() < forked + 60, "an attempt takes more than 60 s"
        if not first_step and len(notes(folder, "begin")) > begun:
            first_step = time.monotonic()
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            ended[child] = status
        else:
            left = first_step + life - time.monotonic() if first_step else 1.0
            time.sleep(min(0.005, max(0.0, left)))
    assert not any(ended.values()), f"a rank failed that nobody killed: {notes(folder, 'failed')}"
    alive = [child for child in children if child not in ended]
    for child in alive:
        os.kill(child, signal.SIGKILL)
    for child in alive:
        os.waitpid(child, 0)
    return len(ended) == RANKS, time.monotonic() - first_step


def fork(rank: int, folder: Path, port: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        train(rank, folder, port)
        code = 0
    except Exception as error:
        note(folder, rank, f"failed {error!r}")
    finally:
        os._exit(code)


def main() -> None:
    warnings.simplefilter("error")
    root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    start = time.monotonic()
    whole = root / "whole"
    whole.mkdir()
    done, life = attempt(whole, 60, from_the_fork=False)
    assert done
    expected = [set(notes(whole, "end", rank)) for rank in range(RANKS)]
    killed = finished = 0
    reached: list[int] = []
    folder = root / "run-0"
    folder.mkdir()
    while killed < kills or not finished:
        before = [complete.step for complete in checkpoint_folders.find_complete(folder / "saved")[0]]
        begun = len(notes(folder, "begin"))
        if killed < kills:  # most of them while it trains and saves, some while it starts and loads
            done, _ = attempt(folder, chance.uniform(0, 0.4 * life), from_the_fork=killed % 5 == 4)
        else:
            done, _ = attempt(folder, 60)
        complete, damaged = checkpoint_folders.find_complete(folder / "saved")
        assert not damaged, damaged
        newest = complete[-1].step if complete else 0
        if len(notes(folder, "begin")) > begun:
            assert notes(folder, "begin")[-1] == str(before[-1] if before else 0), "not the newest was taken"
            saves = [int(step) for step in notes(folder, "save")]
            assert not saves or newest >= saves[-1] - EVERY, f"more than an interval was lost: {saves}, {newest}"
        reached.append(newest)
        killed += not done
        if done:
            assert [set(notes(folder, "end", rank)) for rank in range(RANKS)] == expected
            finished += 1
            folder = root / f"run-{finished}"
            folder.mkdir()
    print(json.dumps({"killed": killed, "finished": finished, "reached": reached, "seconds": time.monotonic() - start}))


if __name__ == "__main__":
    main()
