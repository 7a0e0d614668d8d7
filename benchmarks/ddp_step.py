"""Overhead of the ResNet recipe's loop compared with a hand-written DDP loop; both train in the same ranks, in turn.

    muster run --nproc 2 -m benchmarks.ddp_step                     two ranks on this machine
    muster run --nproc 2 -m benchmarks.ddp_step --rounds 40 --image_size 64

Prints the median time per step of each, and the median ratio of the rounds (recipe / by hand), which should be at most
1.02. On a shared machine, use the ratio of the CPU times.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import muster
from muster.recipes.resnet50.data import Synthetic
from muster.recipes.resnet50.model import ResNet
from muster.recipes.resnet50.options import parse as recipe_options
from muster.recipes.resnet50.train import prepare


def by_hand(world: muster.World, args: argparse.Namespace) -> Iterator[None]:
    """The usual loop of tutorials; yields after each step."""
    torch.manual_seed(0)
    model = ResNet(args.arch, classes=1000).to(world.device)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] - missing in torch's stubs
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=world.device)
    images = images.contiguous(memory_format=torch.channels_last)
    ddp.train()
    step = 0
    while True:
        labels = torch.randint(0, 1000, (args.batch_size,), device=world.device)
        optimizer.zero_grad()
        loss = criterion(ddp(images), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0 and world.rank == 0:
            loss.item()  # as for occasional output
        yield


def by_recipe(world: muster.World, args: argparse.Namespace) -> Iterator[None]:
    """The parts of the recipe, in the order of its loop; yields after each step."""
    words = f"--use_syn --steps_syn 1000000 --arch {args.arch} --batch_size {args.batch_size} --log_every 20"
    run = prepare(world, recipe_options([*words.split(), "--image_size", str(args.image_size)]))
    run.progress.say = lambda line: None
    assert isinstance(run.data, Synthetic)
    for batch, images, labels in run.data.train(run.batches):
        run.progress.begin()
        loss = run.step(images, labels, weight=batch.weight, rate=run.highest_rate)
        run.progress.end(loss, batch.total)
        yield


def timed(steps: Iterator[None], count: int) -> tuple[float, float]:
    """Seconds per step between two barriers: wall-clock time, and CPU time of this rank."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(steps)
    dist.barrier()
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.ddp_step", description="Compare the recipe's DDP loop with a hand-written one."
    )
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--image_size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="steps per round and side")
    args = parser.parse_args()
    with muster.init() as world:
        sides: dict[str, Callable[[muster.World, argparse.Namespace], Iterator[None]]]
        sides = {"by hand": by_hand, "recipe": by_recipe}
        loops = {name: side(world, args) for name, side in sides.items()}
        for loop in loops.values():
            timed(loop, 3)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
        for number in range(args.rounds):
            for name in list(loops) if number % 2 else list(loops)[::-1]:
                times[name].append(timed(loops[name], args.steps))
        if world.rank == 0:
            print(f"{args.arch}, {args.image_size}x{args.image_size}, batch {args.batch_size} on {world.size} ranks")
            for which, clock in enumerate(("time", "CPU time")):
                report(clock, [t[which] for t in times["recipe"]], [t[which] for t in times["by hand"]])


def report(clock: str, recipe: list[float], hand: list[float]) -> None:
    """Print the medians, and the median ratio with its spread."""
    ratios = sorted(ours / theirs for ours, theirs in zip(recipe, hand, strict=True))
    quarter = len(ratios) // 4
    spread = f"middle half of {len(ratios)} rounds: {ratios[quarter]:.3f} to {ratios[-quarter - 1]:.3f}"
    ours, theirs = 1000 * median(recipe), 1000 * median(hand)
    print(f"{clock} per step: recipe {ours:.1f} ms, by hand {theirs:.1f} ms, ratio {median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    main()
