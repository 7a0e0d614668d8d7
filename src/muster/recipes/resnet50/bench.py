"""Measure the throughput of the training step, compared with common ways to train torchvision's ResNet.

    python -m muster.recipes.resnet50.bench                       the table, on a GPU: five minutes
    python -m muster.recipes.resnet50.bench --batches 1024 --alone
    python -m muster.recipes.resnet50.bench --batches 256 --alone --precision float32
    python -m muster.recipes.resnet50.bench --batches 8 --alone --image_size 64 --seconds 0.1 --no-compile    on a CPU

Every row really trains, on a batch that is already on the device. The rows of a batch size take turns, and a row's
result is the median of its rounds after a warmup. torchvision's rows need torchvision to be installed.
"""

# torch is only partially typed.
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
from muster.recipes._flag_types import integer, number

from .data import Synthetic
from .fused.step_choice import make_step
from .model import ResNet
from .step import StepOptions, TrainingStep

Step = Callable[[], Tensor]

WARM_UP, ROUNDS = 6, 5

MUST_RATE, MUST_RATIO, GOAL_RATE = 7500, 1.03, 8000
"""Required images/s of ResNet-50 on 224x224 images on one H200, required ratio to torch.compile, and the goal."""

PUBLISHED = "best published for one of eight H200, MXNet, fp16, MLPerf 4.0: 7,945 images/s"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train, at one batch size."""

    name: str
    batch: int
    build: Callable[[], Step]
    kind: str = "peer"
    """`compiled` is the peer that the rows of kind `ours` are compared with."""


def main() -> None:
    """Measure each batch size and print its rows."""
    args = parse()
    try:
        with muster.init() as world:
            torch.backends.cudnn.benchmark = True
            groups = list(group_rows(args, world))
            print(f"{args.arch}, {args.image_size}x{args.image_size}, {device_name(world)}, torch {torch.__version__}")
            print(
                f"({PUBLISHED})\n\n| step | batch | images/s | rounds | to torch.compile | "
                f"must: {MUST_RATE:,} and {MUST_RATIO} | goal: {GOAL_RATE:,} |"
            )
            print("|---|---|---|---|---|---|---|", flush=True)
            for rows in groups:
                for line in lines(rows, measure(rows, args, world), args):
                    print(line, flush=True)
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="resnet50.bench", description="Compare the training step with torchvision's.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--arch", default="resnet50", help="(resnet50)")
    add("--batches", type=integer(), nargs="+", default=[256, 1024, 2048], help="batch sizes (256 1024 2048)")
    add("--alone", type=integer(), nargs="*", default=[512], help="batch sizes of the recipe without its peers (512)")
    add("--image_size", type=integer(), default=224, help="(224)")
    add("--seconds", type=number(above=0), default=0.5, help="length of a round (0.5)")
    add("--precision", choices=("bf16", "float32"), help="of all rows (bf16 on a GPU, else float32)")
    add("--step", choices=("auto", "plain", "fused"), default="auto", help="the recipe's step (auto)")
    flag = argparse.BooleanOptionalAction
    add("--compile", action=flag, default=True, help="torch.compile: rows of torchvision, and the plain step")
    args = parser.parse_args()
    args.precision = args.precision or ("bf16" if torch.cuda.is_available() else "float32")
    return args


def group_rows(args: argparse.Namespace, world: muster.World) -> Iterator[list[Row]]:
    """Groups of rows that take turns."""
    batches: list[int] = args.batches
    peers = list(torchvision_rows(args, world))
    recipe = recipe_builder(args, world)
    for batch in dict.fromkeys([*batches, *args.alone, *(row.batch for row in peers)]):
        rows = [row for row in peers if row.batch == batch]
        if batch in batches or batch in args.alone:
            rows.append(recipe(batch))
        yield rows


def recipe_builder(args: argparse.Namespace, world: muster.World) -> Callable[[int], Row]:
    """The recipe's step, chosen in the same way as by the recipe."""
    options = StepOptions(precision=args.precision, compile=args.compile, label_smoothing=0.1)

    def make(model: ResNet) -> tuple[TrainingStep, str]:
        what: dict[str, Any] = {"image_size": args.image_size, "mean": Synthetic.mean, "std": Synthetic.std}
        return make_step(args.step, model, world, options, **what)

    def build(batch: int) -> Step:
        shape = (batch, args.image_size, args.image_size, 3)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=world.device)
        labels = torch.randint(0, Synthetic.classes, (batch,), device=world.device)
        step, _ = make(ResNet(args.arch, classes=Synthetic.classes))
        return lambda: step(images, labels, weight=1.0, rate=0.1)

    _, how = make(ResNet(args.arch, classes=Synthetic.classes))
    how, _, reason = how.partition(", not fused: ")
    if reason:
        sys.stderr.write(f"muster: the recipe's step is not fused: {reason}\n")
    name = f"**the recipe**, {args.precision}, {how}"
    return lambda batch: Row(name=name, batch=batch, build=lambda: build(batch), kind="ours")


def torchvision_rows(args: argparse.Namespace, world: muster.World) -> Iterator[Row]:
    """torchvision's model in a typical training loop."""
    try:
        models: Any = import_module("torchvision.models")
    except (ImportError, RuntimeError):  # a torchvision built for another torch raises RuntimeError
        sys.stderr.write("muster: cannot import torchvision; skipping its rows\n")
        return

    bf16: bool = args.precision == "bf16"

    def build(batch: int, compiled: bool) -> Step:
        layout = torch.channels_last if bf16 else torch.contiguous_format
        model = models.get_model(args.arch).to(world.device, memory_format=layout).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-5, fused=bf16)
        images = torch.randn(batch, 3, args.image_size, args.image_size, device=world.device)
        images = images.contiguous(memory_format=layout)
        labels = torch.randint(0, 1000, (batch,), device=world.device)

        def forward(images: Tensor, labels: Tensor) -> Tensor:
            with torch.autocast(world.device.type, torch.bfloat16, enabled=bf16):
                return torch.nn.functional.cross_entropy(model(images), labels)

        loss_of: Any = torch.compile(forward, dynamic=False) if compiled else forward

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(images, labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    name = "torchvision, bf16, channels last" if bf16 else "torchvision, float32"
    batches: list[int] = args.batches
    small = min(batches)
    if small <= 256:  # a slow row, which is not faster with larger batches
        yield Row(name=name, batch=small, build=lambda: build(small, False))
    for batch in batches if args.compile else []:
        yield Row(
            name=f"{name}, torch.compile",
            batch=batch,
            build=lambda batch=batch: build(batch, True),
            kind="compiled",
        )


def measure(rows: list[Row], args: argparse.Namespace, world: muster.World) -> list[list[float]]:
    """Return the rates of each row's rounds; empty for a row that does not fit into memory.

    Rows that do not fit into memory together are measured one after the other.
    """
    try:
        rates = take_turns(rows, args, world)
    except torch.OutOfMemoryError:
        rates = None
    clean_up(world)
    if rates is not None:
        return rates
    if len(rows) == 1:
        return [[]]
    batch = rows[0].batch
    sys.stderr.write(f"muster: the rows of batch {batch} do not fit into memory together; measuring one at a time\n")
    return [measure([row], args, world)[0] for row in rows]


def take_turns(rows: list[Row], args: argparse.Namespace, world: muster.World) -> list[list[float]]:
    """Warm up each row, then run their rounds in turn."""
    return run_rounds(rows, warm_up_rows(rows, args, world), world)


def warm_up_rows(rows: list[Row], args: argparse.Namespace, world: muster.World) -> list[tuple[Step, int]]:
    """Return the step of each row, ready to be measured, and how many steps make a round."""
    torch.manual_seed(0)
    ready: list[tuple[Step, int]] = []
    for row in rows:
        begin = time.perf_counter()
        step = row.build()
        loss = [step() for _ in range(WARM_UP)][-1]
        if not loss.isfinite():
            raise muster.MusterError(f"{row.name} at batch {row.batch}: the loss is {loss.item()}")
        seconds = time.perf_counter() - begin
        ready.append((step, max(1, round(args.seconds / timed(step, 2, world) * 2))))
        sys.stderr.write(f"muster: {row.name} at batch {row.batch} ready after {seconds:.0f} s\n")
    return ready


def run_rounds(rows: list[Row], ready: list[tuple[Step, int]], world: muster.World) -> list[list[float]]:
    """Measure the rows in turn; the rates of each row's rounds."""
    rates: list[list[float]] = [[] for _ in rows]
    for _ in range(ROUNDS):
        for row, (step, count), mine in zip(rows, ready, rates, strict=True):
            mine.append(row.batch * count / timed(step, count, world))
    return rates


def clean_up(world: muster.World) -> None:
    """Free what the last rows used."""
    torch.compiler.reset()
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()


def timed(step: Step, count: int, world: muster.World) -> float:
    """Seconds for several steps, from an idle device to an idle device, after one step that is not counted."""
    cuda = world.device.type == "cuda"
    step()
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def lines(rows: list[Row], rates: list[list[float]], args: argparse.Namespace) -> Iterator[str]:
    """Table rows of one batch size; must and goal apply to ResNet-50 with images of 224 pixels."""
    middles = [median(each) if each else 0.0 for each in rates]
    compiled = max(rate if row.kind == "compiled" else 0.0 for row, rate in zip(rows, middles, strict=True))
    judged = (args.arch, args.image_size) == ("resnet50", 224)
    for row, rate, rounds in zip(rows, middles, rates, strict=True):
        figures, ratio, must, goal = "out of memory | -", "-", "-", "-"
        if rounds:
            figures = f"{rate:,.0f} | {min(rounds):,.0f} to {max(rounds):,.0f}"
            ratio = f"{rate / compiled:.2f}" if compiled else "-"
        if judged and row.kind == "ours":
            must = "yes" if rate >= max(MUST_RATE, MUST_RATIO * compiled) else "no"
            goal = "yes" if rate >= GOAL_RATE else "no"
        yield f"| {row.name} | {row.batch} | {figures} | {ratio} | {must} | {goal} |"


def device_name(world: muster.World) -> str:
    """The name of the device that is measured."""
    cuda = world.device.type == "cuda"
    return torch.cuda.get_device_name(world.device) if cuda else f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
