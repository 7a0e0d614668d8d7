"""How many images per second does the training step do here, beside torchvision's ResNet in the ways people run it?

    python -m muster.recipes.resnet50.bench                       the table, on a GPU: some minutes
    python -m muster.recipes.resnet50.bench --batches 256 --steps 50
    python -m muster.recipes.resnet50.bench --batches 8 --image_size 64 --steps 2 --no-compile    on a CPU

Each row is measured after its warm-up as the median of several rounds, on images that are on the device already.
torchvision's rows are there where torchvision can be imported.
"""

# torch is typed in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

import torch
from torch import Tensor

import muster

from .data import Synthetic
from .model import ResNet
from .step import StepOptions, TrainingStep

Step = Callable[[Tensor, Tensor], object]

WARM_UP, ROUNDS = 5, 5


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train, at one batch size."""

    name: str
    batch: int
    build: Callable[[], Step]


def main() -> None:
    """Measure row after row and print the table."""
    args = parse()
    try:
        with muster.init() as world:
            rows = [*peers(args, world), *ours(args, world)]
            print(f"{args.arch}, {args.image_size}x{args.image_size}, {device_name(world)}, torch {torch.__version__}")
            print("| step | batch | images/s | rounds |\n|---|---|---|---|", flush=True)
            for row in rows:
                rates = measure(row, args, world)
                spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
                print(f"| {row.name} | {row.batch} | {median(rates):,.0f} | {spread} |", flush=True)
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="resnet50.bench", description="Measure the training step beside torchvision's.", allow_abbrev=False
    )
    parser.add_argument("--arch", default="resnet50", help="(resnet50)")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024, 2048], help="batch sizes (256 1024 2048)")
    parser.add_argument("--image_size", type=int, default=224, help="(224)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round (20)")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="rows with torch.compile"
    )
    return parser.parse_args()


def ours(args: argparse.Namespace, world: muster.World) -> Iterator[Row]:
    """The recipe's own step."""
    precision = "bf16" if world.device.type == "cuda" else "float32"

    def build() -> Step:
        options = StepOptions(precision=precision, compile=args.compile, label_smoothing=0.1)
        model = ResNet(args.arch, classes=1000)
        step = TrainingStep(model, world, options, mean=Synthetic.mean, std=Synthetic.std)
        return lambda images, labels: step(images, labels, weight=1.0, rate=0.1)

    for batch in args.batches:
        yield Row(name=f"the recipe, {precision}{', compiled' if args.compile else ''}", batch=batch, build=build)


def peers(args: argparse.Namespace, world: muster.World) -> Iterator[Row]:
    """torchvision's model in a loop as people write it."""
    try:
        models: Any = import_module("torchvision.models")
    except (ImportError, RuntimeError):  # a torchvision built for another torch raises RuntimeError
        sys.stderr.write("muster: torchvision cannot be imported: its rows are left out\n")
        return

    def build(bf16: bool, compiled: bool) -> Step:
        layout = torch.channels_last if bf16 else torch.contiguous_format
        model = models.get_model(args.arch).to(world.device, memory_format=layout)
        network: Any = torch.compile(model) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-5)

        def step(images: Tensor, labels: Tensor) -> None:
            pixels = images.permute(0, 3, 1, 2).float().contiguous(memory_format=layout).div_(255)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(world.device.type, torch.bfloat16, enabled=bf16):
                loss = torch.nn.functional.cross_entropy(network(pixels), labels)
            loss.backward()
            optimizer.step()

        return step

    yield Row(name="torchvision, float32", batch=min(128, *args.batches, 128), build=lambda: build(False, False))
    yield Row(name="torchvision, bf16, channels last", batch=args.batches[0], build=lambda: build(True, False))
    if args.compile:
        for batch in args.batches:
            name = "torchvision, bf16, channels last, compiled"
            yield Row(name=name, batch=batch, build=lambda: build(True, True))


def measure(row: Row, args: argparse.Namespace, world: muster.World) -> list[float]:
    """Return the rate of each round, and leave nothing of the row behind."""
    torch.manual_seed(0)
    shape = (row.batch, args.image_size, args.image_size, 3)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=world.device)
    labels = torch.randint(0, Synthetic.classes, (row.batch,), device=world.device)
    step = row.build()
    for _ in range(WARM_UP):
        step(images, labels)
    rates = [row.batch * args.steps / timed(step, images, labels, args.steps) for _ in range(ROUNDS)]
    del step
    torch.compiler.reset()
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return rates


def timed(step: Step, images: Tensor, labels: Tensor, steps: int) -> float:
    """Seconds for some steps, from an idle device to an idle device."""
    cuda = images.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step(images, labels)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def device_name(world: muster.World) -> str:
    """What is measured on."""
    cuda = world.device.type == "cuda"
    return torch.cuda.get_device_name(world.device) if cuda else f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
