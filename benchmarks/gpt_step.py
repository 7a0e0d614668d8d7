"""The GPT recipe's training step compared with nanoGPT's own model and step, on one GPU, in turn.

    python -m benchmarks.gpt_step --peer model.py                          GPT-2 124M, bfloat16, compiled, batch 64
    python -m benchmarks.gpt_step --peer model.py --batches 12,32,64,128

`--peer` is nanoGPT's model.py, which is not part of this repository. Prints tokens/s, MFU of 790 TFLOP/s (a large
bfloat16 product on one H200) and peak memory of both, the median ratio of the rounds, and how far loss and gradients of
each are from float32.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import muster
from muster.recipes.gpt.model import GPT, Config
from muster.recipes.gpt.options import parse
from muster.recipes.gpt.strategy import accumulate, build_optimizers, parallelize

PEAK = 790e12
CONFIG = Config(precision=torch.bfloat16)
Step = Callable[[], object]


def tokens(batch: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, 50257, (batch, CONFIG.context + 1), device="cuda")
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def by_recipe(world: muster.World, batch: int) -> Step:
    """What the loop of the recipe does in a step, without reading the text."""
    args = parse(["--size", "gpt2", "--lr", "6e-4"])
    model = GPT(CONFIG).to(world.device)
    module, optimizers, data = parallelize(model, world, args), build_optimizers(model, args), tokens(batch)

    def step() -> None:
        accumulate(module, [data], 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

    return step


def by_nanogpt(peer: Any, batch: int) -> Step:
    """What nanoGPT's train.py does in a step, with its model and optimizer."""
    model = peer.GPT(peer.GPTConfig(bias=False)).cuda()
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda")
    compiled, (x, y) = torch.compile(model), tokens(batch)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            _, loss = compiled(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Step, count: int) -> float:
    """Seconds per step, by events on the GPU."""
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    for _ in range(count):
        step()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / count / 1000


def peak(step: Step) -> float:
    """GiB of a step, with all that stays between steps of this one and of others."""
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def compare(world: muster.World, peer: Any, batch: int, rounds: int) -> None:
    """Measure both in turn at one batch size, or the recipe alone."""
    steps: dict[str, Step] = {}
    memory: dict[str, float] = {}
    for name in ("nanogpt", "recipe") if peer else ("recipe",):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated() / 2**30
        steps[name] = by_nanogpt(peer, batch) if name == "nanogpt" else by_recipe(world, batch)
        for _ in range(3):
            steps[name]()
        memory[name] = peak(steps[name]) - before
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            seconds[name].append(timed(step, 8))
    with torch.device("meta"):
        flops = GPT(CONFIG).flops_per_token
    for name, times in seconds.items():
        rate = batch * CONFIG.context / median(times)
        numbers = f"{rate:9,.0f} tokens/s  MFU {rate * flops / PEAK:.3f}  {memory[name]:5.1f} GiB"
        print(
            f"batch {batch:3}  {name:8} {numbers}  {', '.join(f'{1000 * each:.1f}' for each in times)} ms", flush=True
        )
    if peer:
        ratios = [a / b for a, b in zip(seconds["nanogpt"], seconds["recipe"], strict=True)]
        share = memory["recipe"] / memory["nanogpt"]
        print(f"batch {batch:3}  speed {median(ratios):.3f} of nanoGPT's, memory {share:.3f}", flush=True)


def distance(loss: Callable[[], Tensor], model: nn.Module, reference: tuple[float, list[Tensor]] | None) -> Any:
    """Loss and gradients or, with a reference, their relative distance from it."""
    model.zero_grad()
    value = loss()
    value.backward()
    gradients = [each.grad.double() for each in model.parameters() if each.grad is not None]
    if reference is None:
        return value.item(), gradients
    off = sum((a - b).square().sum() for a, b in zip(gradients, reference[1], strict=True))
    whole = sum(b.square().sum() for b in reference[1])
    return abs(value.item() - reference[0]) / reference[0], (off / whole).sqrt().item()  # pyright: ignore


def check(world: muster.World, peer: Any) -> None:
    """Compare loss and gradients in bfloat16, compiled, with those in float32, of fresh weights and tokens."""
    torch.set_float32_matmul_precision("highest")
    x, y = tokens(8)
    exact, fast = GPT(replace(CONFIG, precision=torch.float32)).cuda(), GPT(CONFIG).cuda()
    fast.load_state_dict(exact.state_dict())
    reference = distance(lambda: exact(x, y), exact, None)
    module = parallelize(fast, world, parse([]))
    off = distance(lambda: module(x, y), fast, reference)
    print("recipe   loss and gradients: {:.1e}, {:.1e} off float32".format(*off))
    if peer:
        model = peer.GPT(peer.GPTConfig(bias=False)).cuda()
        reference = distance(lambda: model(x, y)[1], model, None)
        with torch.autocast("cuda", torch.bfloat16):
            off = distance(lambda: model(x, y)[1], model, reference)
        print("nanogpt  loss and gradients: {:.1e}, {:.1e} off float32".format(*off), flush=True)
    torch.set_float32_matmul_precision("high")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpt_step", description="Compare the GPT recipe with nanoGPT.")
    parser.add_argument("--peer", help="nanoGPT's model.py; without it, only the recipe is measured")
    parser.add_argument("--batches", default="64", help="sequences per step, such as 12,64")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed, in turn (5)")
    args = parser.parse_args()
    peer: Any = None
    if args.peer:
        spec = importlib.util.spec_from_file_location("nanogpt_model", args.peer)
        assert spec is not None
        assert spec.loader is not None
        peer = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = peer
        spec.loader.exec_module(peer)
    torch.set_float32_matmul_precision("high")
    with muster.init() as world:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
        for batch in map(int, args.batches.split(",")):
            compare(world, peer, batch, args.rounds)
        check(world, peer)


if __name__ == "__main__":
    main()
