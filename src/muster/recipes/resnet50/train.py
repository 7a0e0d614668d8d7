"""The training loop: open the data, build the step, train for several epochs, save, evaluate."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import muster
from muster.recipes._cpu_threads import divide_cpus
from muster.recipes._flag_types import parse_shares

from .data import Data, open_data
from .evaluate import average_buffers, evaluate
from .fused.step_choice import make_step
from .model import ResNet
from .schedule import learning_rate
from .step import StepOptions, TrainingStep


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
    """The parts of a training run."""

    args: argparse.Namespace
    world: muster.World
    data: Data
    model: ResNet
    step: TrainingStep
    batches: muster.Batches
    progress: muster.Progress
    checkpoints: muster.Checkpoints | None
    highest_rate: float
    began: float

    @property
    def state(self) -> dict[str, Any]:
        """The contents of a checkpoint; the learning rate follows from the position in the data."""
        return {"model": self.model, "optimizer": self.step.optimizer, "batches": self.batches}


def train(run: Run) -> None:
    """Train for all epochs; each ends with a checkpoint, and the last with an evaluation."""
    args, data, batches, progress = run.args, run.data, run.batches, run.progress
    accuracy: float | None = None
    while batches.epoch < args.num_epochs:
        for batch, images, labels in data.train(batches):
            progress.begin()
            share = learning_rate(args.schedule, batch.progress, epochs=args.num_epochs, warmup=args.warmup)
            loss = run.step(images, labels, weight=batch.weight, rate=run.highest_rate * share)
            progress.end(loss, batch.total)
            if progress.is_draining and run.checkpoints:
                save(run)
                run.checkpoints.close()
                progress.say(f"saved step {progress.step}, because a host is about to go away")
                return
            if args.save_every and progress.step % args.save_every == 0:
                save(run)
        save(run)
        if batches.epoch % args.eval_every == 0:
            accuracy = test(run)
    if accuracy is None or args.num_epochs % args.eval_every:
        accuracy = test(run)
    if run.checkpoints:
        run.checkpoints.close()
        save_weights(run)
    progress.close()
    progress.say(f"trained and evaluated in {time.perf_counter() - run.began:.1f} s")
    if accuracy is not None:
        progress.say(f"accuracy: {accuracy:.4f}")


def save(run: Run) -> None:
    """Start writing a checkpoint, unless the loss is NaN or inf."""
    if run.checkpoints:
        run.progress.flush()
        average_buffers(run.model, run.world)
        run.checkpoints.save(run.progress.step, run.state)


def test(run: Run) -> float | None:
    """Return the accuracy on all test images, if there are any."""
    data, batches = run.data, run.batches
    if not data.test_length:
        return None
    with run.progress.pause():
        average_buffers(run.model, run.world)
        accuracy = evaluate(run.step.loss, run.world, data, batches.mine(data.test_length), run.args.batch_size)
    run.progress.note(accuracy=accuracy)
    run.progress.say(f"epoch {batches.epoch}: accuracy {accuracy:.4f} on {data.test_length} images")
    return accuracy


def prepare(world: muster.World, args: argparse.Namespace) -> Run:
    """Create everything that the loop needs, from the data to the checkpoint it resumes from."""
    began = time.perf_counter()
    divide_cpus(world)
    data = muster.together(world, lambda: open_data(args, world))
    seed_all(args.random_seed)  # the same initial weights on all ranks
    stem = args.stem or ("3x3" if data.image_size <= 64 and not args.use_syn else "7x7")
    model = ResNet(args.arch, classes=data.classes, stem=stem)
    options = step_options(args, world, data)
    what: dict[str, Any] = {"image_size": data.image_size, "mean": data.mean, "std": data.std}
    step, how = make_step(args.step, model, world, options, **what, compile_wanted=bool(args.compile))
    seed_all(args.random_seed + 1 + world.rank)  # different augmentation on each rank
    batches = muster.together(world, lambda: make_batches(world, args, data, step))
    step.warm_up(*some_images(world, data, args.batch_size))

    folder = args.model_dir or (None if args.use_syn else "saved_models")
    about = {"arch": args.arch, "stem": stem, "classes": data.classes}
    checkpoints = muster.Checkpoints(folder, world, keep=args.keep, about=about) if folder else None
    state = {"model": model, "optimizer": step.optimizer, "batches": batches}
    first = checkpoints.begin(state, resume=args.resume) if checkpoints else 0
    origin = f"from step {first}" if first else "from the beginning"
    if args.resume and folder and not first:
        origin = load_weights(model, Path(folder) / args.model_filename, world)
    progress = muster.Progress(
        world, batches, epochs=args.num_epochs, step=first, every=args.log_every, metrics=args.metrics, plot=args.plot
    )
    highest = args.learning_rate * (world.size * args.accumulate if args.scale_lr else 1)
    progress.say(
        f"{args.arch} with a {stem} stem on {data.name}: {data.train_length:,} images, {data.classes} classes; "
        f"{world.size} {'rank' if world.size == 1 else 'ranks'} on {world.device.type} ({world.backend}), "
        f"{options.precision}, batch {batches.total}, peak learning rate {highest:g}, {origin}"
    )
    progress.say(f"step: {how}")
    return Run(
        args=args,
        world=world,
        data=data,
        model=model,
        step=step,
        batches=batches,
        progress=progress,
        checkpoints=checkpoints,
        highest_rate=highest,
        began=began,
    )


def step_options(args: argparse.Namespace, world: muster.World, data: Data) -> StepOptions:
    """Fill in the defaults that depend on the device and the data."""
    gpu = world.device.type == "cuda"
    best = "bf16" if gpu and torch.cuda.is_bf16_supported() else "float32"
    decay = 5e-4 if data.name == "CIFAR-10" else 5e-5
    return StepOptions(
        precision=args.precision or best,
        compile=gpu if args.compile is None else args.compile,
        channels_last=args.channels_last,
        accumulate=args.accumulate,
        optimizer=args.optimizer,
        momentum=args.momentum,
        weight_decay=decay if args.weight_decay is None else args.weight_decay,
        label_smoothing=args.label_smoothing,
    )


def make_batches(world: muster.World, args: argparse.Namespace, data: Data, step: TrainingStep) -> muster.Batches:
    """Parse --share, numbers or `measured`, and divide the data accordingly."""
    size = args.batch_size * args.accumulate
    shares: list[float] | None = None
    if args.share == "measured":
        shares = measure(world, step, data, args.batch_size)
    elif args.share:
        shares = parse_shares(args.share)
    return muster.Batches(data.train_length, size, world, shares=shares, seed=args.random_seed, device=world.device)


def measure(world: muster.World, step: TrainingStep, data: Data, count: int) -> list[float]:
    """Let every rank train a copy of the model on its own for a second to measure its speed."""
    trial = step.trial()
    images, labels = some_images(world, data, count)

    def work() -> None:
        trial(images, labels).backward()

    shares = muster.measure_shares(world, work)
    if world.rank == 0:
        print("measured shares:", ", ".join(f"{share:.2f}" for share in shares), flush=True)
    return shares


def some_images(world: muster.World, data: Data, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and labels of the right shape."""
    shape = (count, data.image_size, data.image_size, 3)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=world.device)
    return images, torch.randint(0, data.classes, (count,), device=world.device)


def seed_all(seed: int) -> None:
    """Seed the random number generators that the recipe uses."""
    random.seed(seed)
    torch.manual_seed(seed)


def save_weights(run: Run) -> None:
    """Write the final weights to one file, atomically."""
    if run.world.rank == 0:
        path = Path(run.args.model_dir or "saved_models") / run.args.model_filename
        draft = path.with_name(f"{path.name}.draft")
        torch.save({name: value.cpu() for name, value in run.model.state_dict().items()}, draft)
        draft.replace(path)
        run.progress.say(f"weights: {path}")


def load_weights(model: ResNet, path: Path, world: muster.World) -> str:
    """Start with the weights in a file, if rank 0 has one, and describe what was done."""

    def load() -> bool:
        if world.rank or not path.exists():
            return False
        try:
            weights: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
            weights = {name.removeprefix("module."): value for name, value in weights.items()}  # saved through DDP
        except Exception as error:  # a damaged file can fail in any way
            reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
            raise muster.UsageError(f"cannot read the weights in {path}: {reason}") from None
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            raise muster.UsageError(f"{path} has a different model: {reason}") from None
        return True

    loaded = [muster.together(world, load)]
    dist.broadcast_object_list(loaded, src=0)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    return f"with the weights of {path}" if loaded[0] else "from the beginning, since there is no checkpoint"
