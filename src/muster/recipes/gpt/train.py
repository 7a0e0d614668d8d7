"""The training loop, and what it needs: tokens, model, optimizers, checkpoints."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import math
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import muster
from muster.recipes._cpu_threads import divide_cpus

from .data import Text
from .model import GPT, Config
from .strategy import accumulate, build_optimizers, learning_rate, parallelize


def main(args: argparse.Namespace) -> None:
    """Join the world, train, and leave; errors that a user can fix are reported in one sentence."""
    try:
        with muster.init(backend=args.backend, timeout=args.timeout) as world:
            muster.together(world, lambda: check(world, args))
            Run(world, args).train()
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


def check(world: muster.World, args: argparse.Namespace) -> None:
    """Raise an error about flags that these ranks cannot follow."""
    if args.batch % world.size:
        hint = f"use --batch {-(-args.batch // world.size) * world.size}"
        raise muster.UsageError(f"--batch {args.batch} is not a multiple of {world.size} ranks", hint=hint)
    if args.optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        raise muster.UsageError(f"--optimizer muon needs torch 2.9 or newer, but this is {torch.__version__}")


def stateful(facts: dict[str, Any]) -> Any:
    """A dict as a part of checkpoints."""
    return SimpleNamespace(state_dict=lambda: facts, load_state_dict=facts.update)


class Run:
    """The parts of a run, from the tokens to the checkpoint it resumes from, and the loop."""

    def __init__(self, world: muster.World, args: argparse.Namespace) -> None:
        self.world, self.args, device = world, args, world.device
        divide_cpus(world)
        torch.set_float32_matmul_precision("high")
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = torch.bfloat16 if args.precision == "bf16" or (has_bf16 and not args.precision) else torch.float32
        self.text = text = Text(world, args.data, vocabulary=args.bpe, context=args.context)
        shape = {name: getattr(args, name) for name in ("layers", "heads", "width", "context")}
        shape["vocabulary"] = -(-(256 + len(text.tokenizer.merges)) // 64) * 64  # as tensor cores prefer
        torch.manual_seed(args.seed)  # the same initial weights on all ranks
        self.model = GPT(Config(**shape, recompute=args.recompute == "all", precision=precision)).to(device)
        self.module = muster.together(world, lambda: parallelize(self.model, world, args))
        self.optimizers = build_optimizers(self.model, args)
        length, size = text.sequences * 9 // 10, args.batch // world.size
        self.batches = muster.together(world, lambda: muster.Batches(length, size, world, seed=args.seed))
        # The model by itself, not within DDP: so every strategy saves and resumes the same names.
        facts = stateful({"shape": shape, "merges": text.tokenizer.merges})  # for `generate`
        self.state = {"facts": facts, "model": self.model, "batches": self.batches, **self.optimizers}
        about = {**shape, "optimizer": args.optimizer}
        self.checkpoints = muster.Checkpoints(args.out, world, keep=args.keep, about=about) if args.out else None
        step = self.checkpoints.begin(self.state, resume=args.resume) if self.checkpoints else 0
        output: dict[str, Any] = {"every": args.log_every, "metrics": args.out, "plot": args.plot, "unit": "tokens"}
        flops = self.model.flops_per_token
        self.progress = muster.Progress(world, self.batches, epochs=args.epochs, step=step, flops=flops, **output)
        count = sum(each.numel() for each in self.model.parameters()) / 1e6
        what = f"{count:.1f} M parameters, {len(text.tokens):,} tokens; {args.strategy}, {args.optimizer}"
        self.progress.say(f"{what}; {world.size} rank{'s' * (world.size > 1)}; from step {step}")

    def train(self) -> None:
        """Train for all epochs, with validation and checkpoints in between."""
        args, progress = self.args, self.progress
        while self.batches.epoch < args.epochs:
            for batch in self.batches:
                progress.begin()
                # As many parts on every rank, even if one has a sequence more, because FSDP communicates in each.
                count = -(-max(1, batch.total // self.world.size) // (args.micro_batch or args.batch))
                parts = [self.text.take(each, self.world.device) for each in batch.indices.tensor_split(count)]
                loss = accumulate(self.module, parts, batch.weight)
                if args.clip:
                    nn.utils.clip_grad_norm_(self.model.parameters(), args.clip)
                for optimizer in self.optimizers.values():
                    for group in optimizer.param_groups:
                        group["lr"] = args.lr * learning_rate(batch.progress / args.epochs, args.warmup)
                    optimizer.step()
                    optimizer.zero_grad()
                progress.end(loss, batch.total * args.context)
                if progress.step % args.eval_every == 0:
                    self.validate()
                if self.checkpoints and (progress.step % args.save_every == 0 or progress.is_draining):
                    progress.flush()  # raises an error if the loss is NaN or inf, so that nothing is saved then
                    self.checkpoints.save(progress.step, self.state)
                if self.checkpoints and progress.is_draining:
                    self.checkpoints.close()
                    return progress.say(f"saved step {progress.step}, because a host is about to go away")
        self.validate()
        if self.checkpoints:
            self.checkpoints.save(progress.step, self.state)
            self.checkpoints.close()
        progress.close()

    @torch.no_grad()
    def validate(self) -> None:
        """Print the mean loss on the last tenth of the text, at most 1024 sequences, each of which counts once."""
        world, total = self.world, torch.zeros(2, device=self.world.device)
        with self.progress.pause():
            size = self.args.micro_batch or self.args.batch // world.size
            parts = torch.arange(self.batches.length, self.text.sequences)[:1024].split(size)
            # All ranks make the same number of forward passes, because FSDP communicates in each.
            for i in range(world.rank, -(-len(parts) // world.size) * world.size, world.size):
                part = parts[i % len(parts)]
                loss = self.module(*self.text.take(part, world.device))
                total += torch.stack((loss, torch.ones_like(loss))) * (len(part) if i < len(parts) else 0)
            dist.all_reduce(total)
        loss = float(total[0] / total[1])
        bits = loss / math.log(2) / self.text.bytes_per_token
        self.progress.note(validation_loss=loss)
        self.progress.say(f"step {self.progress.step}: validation loss {loss:.4f}, {bits:.4f} bits per byte")
