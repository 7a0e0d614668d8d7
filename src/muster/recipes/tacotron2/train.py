"""The training loop: open the data, build the step, train for several epochs, validate, draw, save."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import muster

from .audio import AudioSettings
from .data import Corpus, Padding, read_lists, synthetic, training_parts
from .mels import open_corpus
from .model import ModelSizes, Tacotron2, count_parameters
from .options import SIZES, without_meaning
from .original import load_optimizer, load_weights, read_original, write_weights
from .symbols import find_cleaners
from .train_step import StepOptions, TrainingStep, average_buffers
from .validate import validate

WEIGHTS = "tacotron2.pt"
"""The newest weights in --output, in the format of the original."""

GUIDANCE = 1.0
"""Weight of guided attention at the start."""

BETWEEN_CHECKS = 100
"""Steps between validations of epochs without a checkpoint; with few clips an epoch has only two or three steps."""


def main(args: argparse.Namespace) -> None:
    """Join the world, train, and leave; errors that a user can fix are reported in one sentence."""
    try:
        with muster.init(backend=args.dist_backend, timeout=args.timeout) as world:
            train(prepare(world, args))
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Clips for training and for validation."""

    training: Corpus
    validation: Corpus | None
    bad: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The parts of a training run."""

    args: argparse.Namespace
    world: muster.World
    data: Data
    model: Tacotron2
    step: TrainingStep
    batches: muster.Batches
    progress: muster.Progress
    checkpoints: muster.Checkpoints | None
    output: Path | None
    padding: Padding
    began: float

    @property
    def state(self) -> dict[str, Any]:
        """The contents of a checkpoint; the learning rate follows from the epoch."""
        return {"model": self.model, "optimizer": self.step.optimizer, "batches": self.batches}


def train(run: Run) -> None:
    """Train for all epochs, with a checkpoint after some and the last, and a validation after these and some others."""
    args, batches, progress = run.args, run.batches, run.progress
    found, checked = "", progress.step
    while batches.epoch < args.epochs:
        rate = learning_rate(args.learning_rate, batches.epoch, args.anneal_steps or [], args.anneal_factor)
        train_epoch(run, rate)
        if progress.is_draining and run.checkpoints:
            save(run, weights=False)
            run.checkpoints.close()
            progress.say(f"saved step {progress.step}, because a host is about to go away")
            return
        kept = batches.epoch % args.epochs_per_checkpoint == 0 or batches.epoch == args.epochs
        if kept:
            save(run)
        if kept or batches.epoch == 1 or progress.step - checked >= BETWEEN_CHECKS:
            found, checked = check(run, kept=kept or batches.epoch == 1), progress.step
    if run.checkpoints:
        run.checkpoints.close()
    progress.close()
    progress.say(f"trained and validated in {time.perf_counter() - run.began:.1f} s")
    if found:
        progress.say(found)


def train_epoch(run: Run, rate: float) -> None:
    """Train for the rest of an epoch."""
    progress, every = run.progress, run.args.log_every
    unpadded, since = torch.zeros((), device=run.world.device), 0
    for part in training_parts(run.data.training, run.batches, run.padding):
        progress.begin()
        both = run.step(part.examples, rate=rate, guidance=guidance(run.batches, run.args.guided_attention))
        unpadded, since = unpadded + both.unpadded, since + 1
        progress.end(both.reference, part.frames)
        if progress.step % every == 0:
            mean = mean_over_ranks(unpadded / since, run.world)
            unpadded, since = torch.zeros_like(unpadded), 0
            progress.note(unpadded_loss=mean)
            progress.say(f"  without padding: loss {mean:.4f}")
        if progress.is_draining and run.checkpoints:
            return


def check(run: Run, *, kept: bool) -> str:
    """Validate, and return the result as text; draw a clip, to a separate image if it is to be `kept`."""
    corpus, batches, args = run.data.validation, run.batches, run.args
    if corpus is None:
        return ""
    picture = run.output / "alignment.png" if run.output else None
    with run.progress.pause():
        average_buffers(run.model, run.world)
        found = validate(run.step, run.world, corpus, batch_size=args.batch_size, padding=run.padding, picture=picture)
    if picture and picture.exists() and run.world.rank == 0 and kept:
        shutil.copyfile(picture, picture.with_name(f"alignment-epoch-{batches.epoch:04}.png"))
    run.progress.note(
        val_loss=found.reference, val_unpadded_loss=found.unpadded, val_focus=found.focus, val_diagonal=found.diagonal
    )
    words = (
        f"epoch {batches.epoch}: validation loss {found.reference:.4f}, without padding {found.unpadded:.4f}, "
        f"focus {found.focus:.3f}, diagonal {found.diagonal:.3f} on {len(corpus)} clips"
    )
    run.progress.say(words)
    return words


def save(run: Run, *, weights: bool = True) -> None:
    """Start writing a checkpoint, unless the loss is NaN or inf, and the `weights` of a complete epoch."""
    if run.checkpoints and run.output:
        run.progress.flush()
        average_buffers(run.model, run.world)
        run.checkpoints.save(run.progress.step, run.state)
        if run.world.rank == 0 and weights:
            write_weights(run.output / WEIGHTS, run.model, run.batches.epoch - 1, audio_settings(run.args))


def learning_rate(highest: float, epoch: int, anneal_steps: list[int], factor: float) -> float:
    """The learning rate of an epoch: times `factor` from each annealing step on; 0.3 means 1, 0.3, 0.1, 0.03."""
    passed = sum(epoch >= step for step in anneal_steps)
    if factor == 0.3:
        return highest * 0.1 ** (passed // 2) * (0.3 if passed % 2 else 1.0)
    return highest * factor**passed


def guidance(batches: muster.Batches, steps: int) -> float:
    """The weight of guided attention: constant in the first half of the `steps`, then falling to 0."""
    done = batches.progress * (batches.length // batches.total)
    return GUIDANCE * min(1.0, max(0.0, 2 - 2 * done / steps)) if steps else 0.0


def mean_over_ranks(value: torch.Tensor, world: muster.World) -> float:
    """The mean of a value over all ranks."""
    if world.size > 1:
        dist.all_reduce(value)
    return float(value) / world.size


def prepare(world: muster.World, args: argparse.Namespace) -> Run:
    """Create everything that the loop needs, from the data to the checkpoint it resumes from."""
    began = time.perf_counter()
    if world.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.local_size))
    data = open_data(args, world)
    options = step_options(args, world)
    seed_all(args.seed)  # the same initial weights on all ranks
    sizes = ModelSizes(**{name: getattr(args, name) for name in SIZES})
    model = Tacotron2(sizes, uniform_bn=not args.disable_uniform_initialize_bn_weight)
    step = TrainingStep(model, world, options)
    batches = muster.together(world, lambda: muster.Batches(len(data.training), args.batch_size, world, seed=args.seed))
    output = None if args.use_syn and not args.output else Path(args.output or "output")
    about = {**asdict(sizes), "hop_length": args.hop_length}
    checkpoints = muster.Checkpoints(output, world, keep=args.keep, about=about) if output else None
    state = {"model": model, "optimizer": step.optimizer, "batches": batches}
    first = checkpoints.begin(state, resume=args.resume) if checkpoints else 0
    origin = f"from step {first}, epoch {batches.epoch}" if first else "from the beginning"
    if args.checkpoint_path and not first:
        origin = begin_with(args, world, step, batches)
    if not first:
        seed_all(args.seed + 1 + world.rank)  # different dropout on each rank
    every = args.log_every
    progress = muster.Progress(world, batches, epochs=args.epochs, step=first, every=every, unit="mels", metrics=output)
    tell(args, world, data, model, options, batches.total, origin, progress)
    return Run(
        args=args,
        world=world,
        data=data,
        model=model,
        step=step,
        batches=batches,
        progress=progress,
        checkpoints=checkpoints,
        output=output,
        padding=Padding(frames=64, symbols=32) if options.graphs else Padding(),
        began=began,
    )


def tell(
    args: argparse.Namespace,
    world: muster.World,
    data: Data,
    model: Tacotron2,
    options: StepOptions,
    total: int,
    origin: str,
    progress: muster.Progress,
) -> None:
    """Print the configuration of the run."""
    for line in without_meaning(args):
        progress.say(line)
    for name, why in data.bad.items():
        progress.say(f"skipped {name}: {why}")
    if data.bad:
        progress.say(f"skipped {len(data.bad)} {'clip' if len(data.bad) == 1 else 'clips'}")
    kind, clips, hours = (
        "synthetic clips" if args.use_syn else "clips",
        len(data.training),
        sum(data.training.frames) * args.hop_length / args.sampling_rate / 3600,
    )
    aside = f" and {len(data.validation)} for validation" if data.validation else ""
    where = "" if data.training.on_device else ", which stay in host memory"
    progress.say(
        f"Tacotron2 with {count_parameters(model):,} parameters on {clips:,} {kind}, {hours:.1f} hours{aside}{where}; "
        f"{world.size} {'rank' if world.size == 1 else 'ranks'} on {world.device.type} ({world.backend}), "
        f"{options.precision}, {options.decoder} decoder, batch {total}, {origin}"
    )


def open_data(args: argparse.Namespace, world: muster.World) -> Data:
    """Load the clips into memory."""
    if args.use_syn:
        count = args.steps_syn * args.batch_size * world.size
        training = synthetic(count, args.n_mel_channels, world.device, scale=args.syn_scale, seed=args.seed)
        return Data(training=training, validation=None, bad={})
    training, validation = muster.together(world, lambda: read_lists(args))
    cleaners = muster.together(world, lambda: find_cleaners(args.text_cleaners))
    settings = audio_settings(args)
    cache = [Path(args.dataset_path) / "mels", Path.home() / ".cache" / "muster" / "mels"]

    opened = open_corpus(training, world, settings, cleaners=cleaners, cache=cache, skip_bad=args.skip_bad)
    if not validation:
        return Data(training=opened.corpus, validation=None, bad=opened.bad)
    aside = open_corpus(validation, world, settings, cleaners=cleaners, cache=cache, skip_bad=args.skip_bad)
    return Data(training=opened.corpus, validation=aside.corpus, bad={**opened.bad, **aside.bad})


def audio_settings(args: argparse.Namespace) -> AudioSettings:
    """The audio settings from the command line."""
    return AudioSettings(**{field.name: getattr(args, field.name) for field in fields(AudioSettings)})


def step_options(args: argparse.Namespace, world: muster.World) -> StepOptions:
    """Fill in the defaults that depend on the device."""
    gpu = world.device.type == "cuda"
    best = "bf16" if (gpu and torch.cuda.is_bf16_supported()) or args.amp else "float32"
    decoder = args.decoder or ("fast" if gpu else "plain")
    return StepOptions(
        precision=args.precision or best,
        decoder=decoder,
        graphs=gpu and decoder == "fast",
        mask_padding=args.mask_padding,
        weight_decay=args.weight_decay,
        clip=args.grad_clip_thresh,
    )


def begin_with(args: argparse.Namespace, world: muster.World, step: TrainingStep, batches: muster.Batches) -> str:
    """Continue from a checkpoint of the original, which every rank reads."""
    path = Path(args.checkpoint_path)
    original = muster.together(world, lambda: read_original(path))
    muster.together(world, lambda: load_weights(step.model, original, path))
    saved = original.optimizer
    if saved:
        muster.together(world, lambda: load_optimizer(step.optimizer, saved, args.weight_decay, path))
        if args.use_saved_learning_rate:
            args.learning_rate = step.optimizer.param_groups[0]["lr"]
    if original.epoch is not None:
        batches.epoch = original.epoch + 1
    return f"with {path}, in epoch {batches.epoch}"


def seed_all(seed: int) -> None:
    """Seed the random number generators that the recipe uses."""
    random.seed(seed)
    torch.manual_seed(seed)
