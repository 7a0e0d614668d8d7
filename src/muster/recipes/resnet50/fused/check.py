"""Check the results of the fused step: on GPUs where it has not been tested, and after every change.

    python -m muster.recipes.resnet50.fused.check                      everything, about two minutes on an H200
    python -m muster.recipes.resnet50.fused.check kernels              each kernel against plain torch
    python -m muster.recipes.resnet50.fused.check network              a whole forward and backward pass
    python -m muster.recipes.resnet50.fused.check training             a hundred steps
    TRITON_INTERPRET=1 python -m muster.recipes.resnet50.fused.check kernels     without a GPU, small and slow

The network and the training are compared with float32 and with torch's bf16 (autocast): the fused step may differ from
float32 only slightly more than autocast does.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import mean

import torch
from torch import Tensor, nn

import muster

from ..evaluate import evaluate
from ..model import ResNet
from ..step import Loss, StepOptions, TrainingStep
from .check_kernels import check_all
from .fused_step import FusedStep
from .gradients import FusedLoss, operations_for
from .step_choice import obstacle

KINDS = ("float32", "autocast", "fused")
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

KERNEL_ERROR, INTERPRETER_ERROR = 1e-2, 2.5e-2
"""Maximum relative error of a kernel: with rounding to bf16 on a GPU, and with truncation in the interpreter."""

SLACK = 1.1
"""Maximum error of the fused network relative to that of autocast."""


def main() -> None:
    """Run the selected parts and exit with 1 if any check fails."""
    parser = argparse.ArgumentParser(
        prog="resnet50.fused.check", description="Compare the fused step with plain torch.", allow_abbrev=False
    )
    names = ("kernels", "network", "training")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(names)} (all)")
    chosen: list[str] = parser.parse_args().parts or list(names)
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"unknown part {unknown[0]}; choose from {', '.join(names)}")
    try:
        with muster.init() as world:
            make_sure(world, chosen)
            checks = {"kernels": check_kernels, "network": check_network, "training": check_training}
            good = [checks[name](world) for name in chosen]
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)
    print("right" if all(good) else "wrong")
    sys.exit(not all(good))


def make_sure(world: muster.World, chosen: list[str]) -> None:
    """Raise an error if the check would compare plain torch with itself."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
    if interpreted and chosen == ["kernels"]:
        return
    options = StepOptions(precision="bf16")
    if reason := obstacle(ResNet("resnet50", classes=1000), world.device, options, 224):
        raise muster.UsageError(
            f"cannot check the fused step: {reason}",
            hint="without a GPU, run TRITON_INTERPRET=1 python -m muster.recipes.resnet50.fused.check kernels",
        )


def say(good: bool, words: str) -> bool:
    """Print one result."""
    print(f"{'ok   ' if good else 'WRONG'} {words}", flush=True)
    return good


def check_kernels(world: muster.World) -> bool:
    """Compare each kernel with its definition."""
    gpu = world.device.type == "cuda"
    limit, start = KERNEL_ERROR if gpu else INTERPRETER_ERROR, time.perf_counter()
    errors = check_all(operations_for(world.device), world.device, large=gpu)
    good = [say(error <= limit, f"{name}: relative error {error:.1e}") for name, error in errors.items()]
    print(f"kernels: {len(good)} operations in {time.perf_counter() - start:.0f} s, limit {limit:.1e}", flush=True)
    return all(good)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The results of one forward and backward pass."""

    loss: float
    gradients: dict[str, Tensor]
    statistics: dict[str, Tensor]


def check_network(world: muster.World) -> bool:
    """Compare loss, gradients and running statistics of whole networks, including odd batches and sizes."""
    torch.backends.cudnn.allow_tf32 = False
    good = [
        compare_passes(world, arch, batch, size)
        for arch, batch, size in (("resnet50", 64, 224), ("resnet50", 30, 176), ("resnet101", 16, 224))
    ]
    alone = one_pass(world, ResNet("resnet50", classes=1000), "fused", 1, 64)
    finite = all(gradient.isfinite().all() for gradient in alone.gradients.values())
    return all([*good, say(finite, "resnet50, one image of 64 pixels: gradients are finite")])


def compare_passes(world: muster.World, arch: str, batch: int, size: int) -> bool:
    """Compare one pass of each kind from the same weights, far from the initial ones."""
    torch.manual_seed(0)
    model = ResNet(arch, classes=1000)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    start = time.perf_counter()
    passes = {kind: one_pass(world, model, kind, batch, size) for kind in KINDS}
    exact = passes["float32"]
    errors = {
        kind: (distance(passes[kind].gradients, exact.gradients), distance(passes[kind].statistics, exact.statistics))
        for kind in KINDS[1:]
    }
    good = all(mine <= SLACK * theirs for mine, theirs in zip(errors["fused"], errors["autocast"], strict=True))
    words = ", ".join(
        f"{kind} loss {passes[kind].loss:.4f} gradients {errors[kind][0]:.4f} statistics {errors[kind][1]:.5f}"
        for kind in errors
    )
    seconds = time.perf_counter() - start
    return say(good, f"{arch} {batch} x {size}: float32 loss {exact.loss:.4f}; {words} ({seconds:.0f} s)")


def one_pass(world: muster.World, model: ResNet, kind: str, batch: int, size: int) -> Pass:
    """Forward and backward on a copy of the model."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, generator=generator).to(world.device)
    labels = torch.randint(0, 1000, (batch,), generator=generator).to(world.device)
    options = StepOptions(precision="float32" if kind == "float32" else "bf16")
    model = copy.deepcopy(model).to(world.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    loss = Loss(model, options, MEAN, STD).to(world.device)
    value = (FusedLoss(loss, options) if kind == "fused" else loss)(images, labels)
    value.backward()
    gradients = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return Pass(loss=value.item(), gradients=gradients, statistics=statistics)


def distance(mine: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The mean relative error of tensors."""
    return mean(((mine[name] - tensor).norm() / tensor.norm()).item() for name, tensor in exact.items())


class Patterns:
    """Sixteen fixed patterns in noise, which a network learns in a hundred steps."""

    classes, image_size = 16, 224

    def __init__(self, device: torch.device, batch: int) -> None:
        self._device, self._batch = device, batch
        self.test_length = 4 * batch
        generator = torch.Generator(device).manual_seed(0)
        patterns = torch.randn(self.classes, 3, 14, 14, generator=generator, device=device)
        self._patterns = nn.functional.interpolate(patterns, self.image_size, mode="bilinear").permute(0, 2, 3, 1)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the images and labels of one batch."""
        generator = torch.Generator(self._device).manual_seed(number)
        labels = torch.randint(0, self.classes, (self._batch,), generator=generator, device=self._device)
        shape = (self._batch, self.image_size, self.image_size, 3)
        noise = torch.randn(shape, generator=generator, device=self._device)
        return (128 + 60 * (0.5 * self._patterns[labels] + noise)).clamp(0, 255).to(torch.uint8), labels

    def test(self, part: range, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over four batches that are not used in training."""
        return (self.batch(5000 + i) for i in range(4))


def check_training(world: muster.World) -> bool:
    """Compare a hundred steps of each kind from the same weights, and an evaluation with the running statistics."""
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    data, model = Patterns(world.device, 128), ResNet("resnet50", classes=1000)
    for name, parameter in model.named_parameters():
        if name.endswith("bn3.weight"):
            nn.init.constant_(parameter, 0.25)  # with 0 most gradients would be 0 at first
    results = {kind: train(world, model, kind, data) for kind in KINDS}
    for kind, (losses, accuracy) in results.items():
        tens = " ".join(f"{mean(losses[i : i + 10]):.4f}" for i in range(0, len(losses), 10))
        print(f"      {kind:8}  mean loss of ten steps: {tens}  accuracy {accuracy:.4f}")
    exact, cast, mine = (results[kind] for kind in KINDS)
    far, noise = furthest(mine[0], exact[0]), furthest(cast[0], exact[0])
    learned = mean(mine[0][-10:]) <= 1.5 * mean(exact[0][-10:]) + 0.02 and mine[1] >= exact[1] - 0.01
    accuracies = f"final accuracy {mine[1]:.4f} (float32 {exact[1]:.4f})"
    words = f"training: maximum difference to float32 {far:.4f} (autocast {noise:.4f}), {accuracies}"
    return say(learned and far <= noise + 0.1, words)


def furthest(losses: list[float], exact: list[float]) -> float:
    """The largest difference between the means of ten steps."""
    return max(abs(mean(losses[i : i + 10]) - mean(exact[i : i + 10])) for i in range(0, len(exact), 10))


def train(world: muster.World, model: ResNet, kind: str, data: Patterns) -> tuple[list[float], float]:
    """Return the loss of each step, and the accuracy at the end."""
    options = StepOptions(precision="float32" if kind == "float32" else "bf16", weight_decay=1e-4)
    step_class = FusedStep if kind == "fused" else TrainingStep
    step = step_class(copy.deepcopy(model), world, options, mean=MEAN, std=STD)
    losses = [step(*data.batch(i), weight=1.0, rate=0.02) for i in range(100)]
    accuracy = evaluate(step.loss, world, data, range(data.test_length), 128)
    return torch.stack(losses).tolist(), accuracy


if __name__ == "__main__":
    main()
