"""Train on MNIST with ranks of different speed: each gets the share of every batch that it can handle.

    muster run -H big:8,small:2 -m muster.recipes.mnist_unequal              shares measured at the start
    muster run -H big:1,small:1 -m muster.recipes.mnist_unequal --share 8,2
    torchrun --nproc-per-node 2 -m muster.recipes.mnist_unequal
    mpirun -np 2 python -m muster.recipes.mnist_unequal
    python -m muster.recipes.mnist_unequal                                   one process

It is muster.recipes.mnist, with the same flags, but `muster.Batches` divides the data instead of DistributedSampler.
Every step ends when the slowest rank is done, so with equal parts a fast GPU waits for a slow one.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportCallIssue=false

import argparse
import copy
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import muster
from muster.recipes._cpu_threads import divide_cpus
from muster.recipes._flag_types import parse_shares
from muster.recipes._mnist import load, parse, start
from muster.recipes.mnist import conv_net, evaluate, prepare


def divide(
    world: muster.World, args: argparse.Namespace, model: nn.Module, images: Tensor, labels: Tensor
) -> muster.Batches:
    """Divide each batch as --share says, with its numbers or as fast as the ranks are."""
    if args.share == "measured":
        trial = copy.deepcopy(model)  # each rank trains it on its own for a second
        some = slice(args.batch_size)
        shares = muster.measure_shares(
            world, lambda: cross_entropy(trial(prepare(images[some])), labels[some]).backward()
        )
        if world.rank == 0:
            print("measured shares:", ", ".join(f"{share:.1f}" for share in shares), flush=True)
    else:
        shares = parse_shares(args.share)
    return muster.Batches(len(images), args.batch_size, world, shares=shares, seed=args.seed, device=world.device)


def train(world: muster.World, args: argparse.Namespace) -> None:
    """Train, save, evaluate. Every rank runs this, with its own share of each batch."""
    began = time.perf_counter()
    divide_cpus(world)
    images, labels, test_images, test_labels = load(world, args)
    torch.manual_seed(args.seed)
    model = conv_net(world.device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    batches = muster.together(world, lambda: divide(world, args, model, images, labels))

    muster.warm_up(ddp, lambda: cross_entropy(ddp(prepare(images[:9])), labels[:9]).backward())
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpoints = muster.Checkpoints(args.model_dir, world, keep=args.keep) if args.model_dir else None
    step = checkpoints.begin(state, resume=args.resume) if checkpoints else 0
    output = {"every": args.log_every, "metrics": args.metrics, "plot": args.plot}
    progress = muster.Progress(world, batches, epochs=args.epochs, step=step, **output)
    if step:
        progress.say(f"resumed at step {step}, in epoch {batches.progress:.2f}")

    while batches.epoch < args.epochs:
        for batch in batches:
            progress.begin()
            done = batch.progress / args.epochs
            optimizer.param_groups[0]["lr"] = args.lr * world.size * min(done / 0.2, (1 - done) / 0.8)
            optimizer.zero_grad()
            # The weight makes DDP's average over the ranks the mean over the whole batch.
            loss = cross_entropy(ddp(prepare(images[batch.indices])), labels[batch.indices]) * batch.weight
            loss.backward()
            optimizer.step()
            progress.end(loss, batch.total)
            if checkpoints and (progress.is_draining or (args.save_every and progress.step % args.save_every == 0)):
                progress.flush()
                checkpoints.save(progress.step, state)
            if checkpoints and progress.is_draining:
                checkpoints.close()
                return progress.say(f"saved step {progress.step}, because a host is about to go away")

    mine = batches.mine(len(test_labels))
    with progress.pause():
        accuracy = evaluate(model, test_images[mine.start : mine.stop], test_labels[mine.start : mine.stop])
    if checkpoints:
        checkpoints.save(progress.step, state)
        checkpoints.close()
    progress.note(accuracy=accuracy)
    progress.close()
    progress.say(f"trained and evaluated in {time.perf_counter() - began:.1f} s\naccuracy: {accuracy:.4f}")


def work(args: argparse.Namespace, **rank: int) -> None:
    """Join the other ranks, train, and leave; the launcher says which rank this is, unless the caller does."""
    with muster.init(backend=args.backend, timeout=args.timeout, **rank) as world:
        train(world, args)


if __name__ == "__main__":
    start(work, parse("mnist_unequal", "Train on MNIST with ranks of different speed.", share="measured"))
