"""Measure the mel frames per second of the training step, compared with torchaudio's Tacotron2.

    python -m muster.recipes.tacotron2.bench                          the table, on a GPU: about a minute
    python -m muster.recipes.tacotron2.bench --batch 256 --rounds 5
    python -m muster.recipes.tacotron2.bench --batch 2 --symbols 8 --frames 12 --small       on a CPU

A step is forward, backward, clipping and Adam, on clips that are already on the device and have no padding. The rows
take turns in every round, so that all run at the same clock rates. torchaudio's row needs torchaudio to be installed.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import argparse
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
from muster.recipes._flag_types import integer

from .data import Examples
from .loss import losses
from .model import ModelSizes, Outputs, Tacotron2
from .train_step import StepOptions, TrainingStep

RATE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train."""

    name: str
    step: Callable[[], object]
    steps: int
    """Number of steps per round."""


def main() -> None:
    """Measure the rows in turn and print the table."""
    args = parse()
    try:
        with muster.init() as world:
            examples = make_examples(args, world.device)
            rows = [*peer(args, world, examples), *ours(args, world, examples)]
            for row in rows:
                for _ in range(3):  # the first compiles, the second captures
                    row.step()
            times: dict[str, list[float]] = {row.name: [] for row in rows}
            for _ in range(args.rounds):
                for row in rows:
                    times[row.name].append(timed(row, world.device))
            show(args, world, times)
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tacotron2.bench", description="Compare the training step with torchaudio's.", allow_abbrev=False
    )
    parser.add_argument("--batch", type=integer(), default=128, help="(128)")
    parser.add_argument("--symbols", type=integer(), default=120, help="(120)")
    parser.add_argument("--frames", type=integer(), default=600, help="(600)")
    parser.add_argument("--rounds", type=integer(), default=5, help="(5)")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), help="(bf16 on a GPU, else float32)")
    parser.add_argument("--plain", action="store_true", help="also measure the plain loop of this recipe")
    parser.add_argument("--small", action="store_true", help="a network of a few thousand parameters")
    return parser.parse_args()


def make_examples(args: argparse.Namespace, device: torch.device) -> Examples:
    """Random clips, all of one length."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(1, 148, (args.batch, args.symbols), generator=generator)
    mels = (
        torch.randn(args.batch, args.frames, 80, generator=generator).transpose(1, 2) * 2 - 5
    )  # in memory as in training
    return Examples(
        text=text.to(device),
        text_lengths=torch.full((args.batch,), args.symbols, device=device),
        mels=mels.to(device),
        mel_lengths=torch.full((args.batch,), args.frames, device=device),
    )


def ours(args: argparse.Namespace, world: muster.World, examples: Examples) -> Iterator[Row]:
    """The recipe's step."""
    gpu = world.device.type == "cuda"
    precision = args.precision or ("bf16" if gpu else "float32")
    ways = [("plain", False)] if args.plain else []
    ways += [("fast", False), ("fast", True)] if gpu else [("fast", False)]
    for decoder, graphs in ways:
        torch.manual_seed(0)
        options = StepOptions(precision=precision, decoder=decoder, graphs=graphs)
        step = TrainingStep(Tacotron2(sizes(args)), world, options)
        name = f"the recipe, {precision}, {decoder} decoder{', CUDA graph' if graphs else ''}"
        yield Row(name=name, step=lambda step=step: step(examples, rate=RATE), steps=10 if graphs else 2)


def sizes(args: argparse.Namespace) -> ModelSizes:
    """The usual network, or one for a test of this program."""
    if not args.small:
        return ModelSizes()
    return ModelSizes(
        symbols_embedding_dim=16,
        encoder_embedding_dim=16,
        decoder_rnn_dim=16,
        prenet_dim=16,
        attention_rnn_dim=16,
        attention_dim=16,
        postnet_embedding_dim=16,
    )


def peer(args: argparse.Namespace, world: muster.World, examples: Examples) -> Iterator[Row]:
    """torchaudio's model in a typical training loop."""
    try:
        models: Any = import_module("torchaudio.models")
    except (ImportError, OSError, RuntimeError):  # a torchaudio built for another torch fails in several ways
        sys.stderr.write("muster: cannot import torchaudio; skipping its row\n")
        return
    model = models.Tacotron2().to(world.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=1e-6)
    gpu = world.device.type == "cuda"
    bf16 = args.precision in ("bf16", None) and gpu

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(world.device.type, torch.bfloat16, enabled=bf16):
            before, after, gates, alignments = model(
                examples.text, examples.text_lengths, examples.mels, examples.mel_lengths
            )
        outputs = Outputs(mels=before, refined=after, gates=gates, alignments=alignments)
        loss = losses(outputs, examples.mels, examples.mel_lengths).reference
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    yield Row(name=f"torchaudio {'bf16 autocast' if bf16 else 'float32'}, eager", step=step, steps=1)


def timed(row: Row, device: torch.device) -> float:
    """Seconds per step, from an idle device to an idle device."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(row.steps):
        row.step()
    synchronize(device)
    return (time.perf_counter() - start) / row.steps


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show(args: argparse.Namespace, world: muster.World, times: dict[str, list[float]]) -> None:
    """Print the table; the last column compares with its first row."""
    cuda = world.device.type == "cuda"
    machine = torch.cuda.get_device_name(world.device) if cuda else f"CPU, {torch.get_num_threads()} threads"
    print(f"batch {args.batch}, {args.symbols} symbols, {args.frames} frames; {machine}, torch {torch.__version__}")
    print("| training step | ms | mels/s | rounds | times the first row |\n|---|---|---|---|---|")
    first = median(next(iter(times.values())))
    for name, seconds in times.items():
        middle, mels = median(seconds), args.batch * args.frames
        spread = f"{mels / max(seconds):,.0f} to {mels / min(seconds):,.0f}"
        print(f"| {name} | {middle * 1000:,.1f} | {mels / middle:,.0f} | {spread} | {first / middle:.1f} |", flush=True)


if __name__ == "__main__":
    main()
