"""The training loop: tokens, model, optimizers, then steps, with validation and checkpoints in between."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import muster

from .checkpoint import Checkpoints
from .data import Data, load
from .model import GPT, Config
from .strategy import accumulate, build_optimizers, learning_rate, parallelize

PEAKS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Operations per second in bfloat16 that vendors state, by a part of the GPU's name."""


def main(args: argparse.Namespace) -> None:
    """Join the world, train, and leave; errors that a user can fix are reported in one sentence."""
    try:
        with muster.init(backend=args.backend, timeout=args.timeout) as world:
            train(prepare(world, args))
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The parts of a run."""

    args: argparse.Namespace
    world: muster.World
    data: Data
    model: GPT
    module: nn.Module
    """The model in DDP, or itself."""
    optimizers: list[torch.optim.Optimizer]
    checkpoints: Checkpoints | None
    first: int
    """The step to begin with."""

    def say(self, line: str, **numbers: float) -> None:
        """Print a line on rank 0, and write numbers to metrics.jsonl."""
        if self.world.rank == 0:
            sys.stdout.write(f"{line}\n")  # one write: with torchrun's `python -u`, print would make two
            sys.stdout.flush()
            if self.args.out and numbers:
                with (Path(self.args.out) / "metrics.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(numbers) + "\n")


def prepare(world: muster.World, args: argparse.Namespace) -> Run:
    """Create everything that the loop needs, from the tokens to the checkpoint it resumes from."""
    device = world.device
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.local_size))
    if args.compile is None:
        args.compile = device.type == "cuda"
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    precision = torch.bfloat16 if args.precision == "bf16" or (has_bf16 and not args.precision) else torch.float32
    torch.set_float32_matmul_precision("high")
    muster.together(world, lambda: check(world, args))
    vocabulary = args.vocabulary if args.tokenizer == "bpe" else 256
    data = load(world, args.data, vocabulary=vocabulary, context=args.context, seed=args.seed)
    shape = {name: getattr(args, name) for name in ("layers", "heads", "width", "context", "attention", "window")}
    shape["vocabulary"] = data.tokenizer.vocabulary
    torch.manual_seed(args.seed)  # the same initial weights on all ranks
    model = GPT(Config(**shape, recompute=args.recompute, precision=precision)).to(device)
    module = muster.together(world, lambda: parallelize(model, world, args))
    optimizers = build_optimizers(model, args)
    checkpoints = None
    if args.out:
        fixed = {**shape, "optimizer": args.optimizer, "tokens": len(data.tokens)}
        checkpoints = Checkpoints(
            Path(args.out), world, module, optimizers, fixed=fixed, merges=data.tokenizer.merges, keep=args.keep
        )
    first = checkpoints.begin(resume=args.resume) if checkpoints else 0
    run = Run(
        args=args,
        world=world,
        data=data,
        model=model,
        module=module,
        optimizers=optimizers,
        checkpoints=checkpoints,
        first=first,
    )
    count = sum(each.numel() for each in model.parameters())
    run.say(
        f"{count / 1e6:.1f} M parameters, {len(data.tokens):,} tokens of {data.bytes_per_token:.2f} bytes; {world.size} ranks, {args.strategy}, {args.optimizer}, {str(precision)[6:]}; from step {first}"
    )
    return run


def check(world: muster.World, args: argparse.Namespace) -> None:
    """Refuse what these ranks cannot do."""
    if args.batch % world.size:
        raise muster.UsageError(
            f"--batch {args.batch} is not a multiple of {world.size} ranks",
            hint=f"use --batch {-(-args.batch // world.size) * world.size}",
        )
    if (args.batch // world.size) % (args.micro_batch or 1):
        raise muster.UsageError(
            f"the {args.batch // world.size} sequences of a rank are not a multiple of --micro_batch {args.micro_batch}"
        )
    if args.attention == "flex" and world.device.type == "cpu":
        raise muster.UsageError(
            "--attention flex needs a GPU: torch cannot train with it on a CPU", hint="use --attention sdpa"
        )
    if args.optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        raise muster.UsageError(f"--optimizer muon needs torch 2.9 or newer, this is {torch.__version__}")
    if args.out:
        try:
            Path(args.out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise muster.UsageError(f"cannot write to --out {args.out}: {error.strerror}") from None


def train(run: Run) -> None:
    """Train from the first step to the last."""
    args, world = run.args, run.world
    per_rank = args.batch // world.size
    mine = slice(world.rank * per_rank, (world.rank + 1) * per_rank)
    began, steps = time.perf_counter(), 0
    losses = torch.zeros((), device=world.device)
    for step in range(run.first, args.steps):
        rate = args.lr * learning_rate(step, steps=args.steps, warmup=args.warmup, lowest=args.min_lr)
        starts = run.data.batch(step, args.batch)[mine].split(args.micro_batch or per_rank)
        losses += accumulate(run.module, [run.data.take(each, world.device) for each in starts])
        if args.clip:
            nn.utils.clip_grad_norm_(run.model.parameters(), args.clip)
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
        done, is_last = step + 1, step + 1 == args.steps
        is_leaving = False
        if done % args.log_every == 0 or is_last or done % args.save_every == 0:
            loss, is_leaving = mean_loss(run, losses / steps, done)
            show(run, done, loss, rate, steps, time.perf_counter() - began)
            losses.zero_()
            began, steps = time.perf_counter(), 0
        if run.checkpoints and (done % args.save_every == 0 or is_last or is_leaving):
            run.checkpoints.save(done)
            began = time.perf_counter()
        if run.checkpoints and is_leaving and not is_last:
            return run.say(f"saved step {done}, because a host is about to go away")
        if done % args.eval_every == 0 or is_last:
            loss = validate(run)
            bits = loss / math.log(2) / run.data.bytes_per_token
            run.say(
                f"step {done}: validation loss {loss:.4f}, {bits:.4f} bits per byte", step=done, validation_loss=loss
            )
            began = time.perf_counter()
    if run.first >= args.steps:
        run.say(f"nothing to do: the checkpoint is at step {run.first}, and --steps is {args.steps}")


def mean_loss(run: Run, loss: torch.Tensor, step: int) -> tuple[float, bool]:
    """The mean loss of all ranks, and whether Muster will end one of them soon; an error if the loss is NaN or inf."""
    both = torch.stack((loss, torch.full_like(loss, run.world.deadline is not None)))
    dist.all_reduce(both)
    mean, leaving = both.tolist()
    if not math.isfinite(mean):
        error = muster.MusterError(
            f"the loss is {mean} at step {step}", hint="try a lower --lr; --resume continues from the last checkpoint"
        )

        def fail() -> None:
            raise error

        muster.together(run.world, fail)
    return mean / run.world.size, leaving > 0


def show(run: Run, step: int, loss: float, rate: float, steps: int, seconds: float) -> None:
    """Print one line about the last steps."""
    args, device = run.args, run.world.device
    speed = steps * args.batch * args.context / seconds
    flops = speed * run.model.flops_per_token / run.world.size
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = next((peak for part, peak in PEAKS.items() if part in name), 0.0)
    used = f"MFU {flops / peak:.1%}" if peak else f"{flops / 1e9:,.0f} GFLOP/s per rank"
    left = (args.steps - step) * seconds / steps
    run.say(
        f"step {step}/{args.steps}  loss {loss:.4f}  lr {rate:.2e}  {speed:,.0f} tokens/s  {used}  {left:.0f} s left",
        step=step,
        loss=loss,
        lr=rate,
        tokens_per_s=round(speed, 1),
    )


@torch.no_grad()
def validate(run: Run) -> float:
    """The mean loss on the last tenth of the text; each sequence counts once, however many ranks there are."""
    starts = run.data.validation(run.args.eval_sequences)
    size = min(run.args.micro_batch or run.args.batch // run.world.size, len(starts))
    parts = [part for part in starts.split(size) if len(part) == size]
    total = torch.zeros(2, device=run.world.device)
    # All ranks make the same number of forward passes, because FSDP communicates in each.
    for i in range(run.world.rank, -(-len(parts) // run.world.size) * run.world.size, run.world.size):
        loss = run.module(*run.data.take(parts[i % len(parts)], run.world.device))
        total += torch.stack((loss, torch.ones_like(loss))) * (i < len(parts))
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
