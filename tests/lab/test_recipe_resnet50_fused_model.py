"""The fused step of the ResNet recipe: the same numbers as the plain one, and checkpoints that fit both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bare import ENV, script
from launching import run_here
from recipes import Command
from waiting import patience

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

# In float64 nothing but an error can make a difference. Some scales of normalizations are negative, and none is the
# identity; two blocks in a stage are what needs every path. Half of the channels is a quarter of the work.
STEPS = """
import copy, dataclasses, sys
import muster, torch
from torch import nn
import muster.recipes.resnet50.model as resnet
resnet.WIDTHS = (32, 64, 128, 256)
from muster.recipes.resnet50.fused import network
network.PLANS = {width // 2: plan for width, plan in network.PLANS.items()}
from muster.recipes.resnet50.fused.fused_step import FusedStep
from muster.recipes.resnet50.fused.step_choice import network_obstacle
from muster.recipes.resnet50.model import BLOCKS, ResNet
from muster.recipes.resnet50.step import StepOptions, TrainingStep

torch.set_default_dtype(torch.float64)
BLOCKS["small"] = (2, 2, 1, 1)

def first_model():
    torch.manual_seed(0)
    model = ResNet("small", classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model

def make(model, world, fused, **more):
    options = StepOptions(label_smoothing=0.1, weight_decay=1e-2, **more)
    kind = FusedStep if fused else TrainingStep
    return kind(model, world, options, mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))

def batch(number, count):
    generator = torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 10, (count,), generator=generator)

def worst(one, other):
    differences = [(a.double() - b.double()).abs().max().item() for a, b in zip(one, other, strict=True)]
    return max(differences) if differences else float("nan")
"""

SAME_NUMBERS = (
    STEPS
    + """
with muster.init() as world:
    models = [first_model(), first_model()]
    plain, fused = (make(model, world, kind, accumulate=2) for model, kind in zip(models, (False, True)))
    for number in range(2):
        images, labels = batch(number, 3)
        one, other = (step(images, labels, weight=0.7, rate=0.05) for step in (plain, fused))
        assert abs(one - other) < 1e-9, (one, other)
        gradients = [[p.grad for p in model.parameters()] for model in models]
        scale = max(gradient.abs().max().item() for gradient in gradients[0])
        assert worst(*gradients) < 1e-9 * scale, (number, worst(*gradients), scale)
        assert worst(*(model.state_dict().values() for model in models)) < 1e-9
    assert models[1].bn1.num_batches_tracked == 4
    assert list(models[0].state_dict()) == list(models[1].state_dict())

    # What one step has saved, the other takes up: one step here and one there are two.
    images, labels = batch(7, 3)
    alone = first_model()
    expected = make(alone, world, False)
    for _ in range(2):
        expected(images, labels, weight=1.0, rate=0.05)
    for first, second, folder in ((False, True, "a"), (True, False, "b")):
        model = first_model()
        step = make(model, world, first)
        step(images, labels, weight=1.0, rate=0.05)
        with muster.Checkpoints(f"{sys.argv[1]}/{folder}", world) as checkpoints:
            checkpoints.begin({"model": model, "optimizer": step.optimizer}, resume=False)
            checkpoints.save(1, {"model": model, "optimizer": step.optimizer})
        later = ResNet("small", classes=10)
        step = make(later, world, second)
        with muster.Checkpoints(f"{sys.argv[1]}/{folder}", world) as checkpoints:
            assert checkpoints.begin({"model": later, "optimizer": step.optimizer}, resume=True) == 1
        step(images, labels, weight=1.0, rate=0.05)
        assert worst(later.state_dict().values(), alone.state_dict().values()) < 1e-9, folder
print("the same")
"""
)

TWO_RANKS = (
    STEPS
    + """
with muster.init() as world:
    models = [first_model(), first_model()]
    if world.rank:
        for parameter in models[1].parameters():
            nn.init.zeros_(parameter)  # rank 0 decides over the first weights, as in DDP
    steps = [make(model, world, kind, accumulate=2) for model, kind in zip(models, (False, True))]
    images, labels = batch(0, 24)
    batches = muster.Batches(24, 4, world, shares=(3, 1))
    for part in batches.rest_of_epoch()[:2]:
        mine = images[part.indices], labels[part.indices]
        assert part.weight == (1.5, 0.5)[world.rank]
        one, other = (step(*mine, weight=part.weight, rate=0.05) for step in steps)
        assert abs(one - other) < 1e-9
    assert worst(*(model.state_dict().values() for model in models)) < 1e-9
    total = torch.cat([p.detach().flatten() for p in models[1].parameters()])
    mean = total / 2
    torch.distributed.all_reduce(mean)
    assert torch.equal(mean, total), "ranks have the same weights"
    print("the same")
"""
)

OBSTACLES = (
    STEPS
    + """
bf16 = StepOptions(precision="bf16")
torch.set_default_device("meta")
deep = ResNet("resnet50", classes=10)
print([network_obstacle(*each) for each in (
    (deep, bf16, 224),
    (deep, StepOptions(), 224),
    (deep, StepOptions(precision="bf16", channels_last=False), 224),
    (ResNet("resnet34", classes=10), bf16, 224),
    (ResNet("resnet50", classes=10, stem="3x3"), bf16, 224),
    (deep, bf16, 100),
    (deep, bf16, 32),
)])
"""
)


def run(warm: Path, tmp_path: Path, code: str) -> str:
    done = Command(warm / "python3", script(tmp_path, code), tmp_path).end()
    assert (done.code, done.err) == (0, "")
    return done.out


def test_loss_gradients_statistics_and_checkpoints_are_those_of_the_plain_step(warm, tmp_path):
    assert run(warm, tmp_path, SAME_NUMBERS) == "the same\n"


def test_two_ranks_with_unequal_shares_train_as_with_ddp(tmp_path):
    done = run_here(tmp_path, "--preload=torch._dynamo", "--nproc", "2", "--quiet", script(tmp_path, TWO_RANKS))
    assert done.code == 0, done.said
    assert done.lines(0) == done.lines(1) == ["the same"]


def test_what_the_fused_step_cannot_train_is_said_in_words(warm, tmp_path):
    assert eval(run(warm, tmp_path, OBSTACLES)) == [
        "",
        "it requires bf16",
        "it needs --channels_last",
        "it supports only ResNet-50, -101 and -152",
        "it does not support the 3x3 stem",
        "image size must be a multiple of 8, got 100",
        "image size must be at least 64, got 32",
    ]


def test_without_a_gpu_there_is_nothing_to_check(warm):
    done = Command(warm / "python3", "-m", "muster.recipes.resnet50.fused.check").end()
    assert (done.code, done.out) == (2, "")
    words = "error: cannot check the fused step: it needs a GPU of compute capability 9.0 or newer\nhint: "
    assert done.err.startswith(words)


@pytest.mark.timeout(400)
def test_every_kernel_computes_what_its_definition_says(tmp_path):
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs only", exc_type=ImportError)
    env = {**ENV, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "muster.recipes.resnet50.fused.check", "kernels"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=patience(390))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\nright\n")
