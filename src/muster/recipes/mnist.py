"""Train a small ConvNet on MNIST with DDP, to 99 % in a minute on a laptop.

    muster run -m muster.recipes.mnist --data DIR                every GPU of this machine
    muster run -H gpu[01-04]:8,box:2 -m muster.recipes.mnist
    torchrun --nproc-per-node 2 -m muster.recipes.mnist
    mpirun -np 2 python -m muster.recipes.mnist
    python -m muster.recipes.mnist                               one process
    python -m muster.recipes.mnist -n 2 -g 8,2 -i 0 --master-addr node0      8 processes here; on node1: -i 1

DIR has the four idx files, compressed or not; missing ones are downloaded. The last line is the test accuracy.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportCallIssue=false

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

import muster
from muster.recipes._cpu_threads import divide_cpus
from muster.recipes._mnist import Position, load, parse, start


def stage(inputs: int, outputs: int) -> nn.Sequential:
    """A convolution, followed by pooling that halves the size of the images."""
    convolution = nn.Conv2d(inputs, outputs, kernel_size=5, padding=2, bias=False)
    return nn.Sequential(convolution, nn.MaxPool2d(2), nn.BatchNorm2d(outputs), nn.ReLU())


def conv_net(device: torch.device) -> nn.Module:
    """Two convolutions and a linear layer: 29,000 parameters."""
    net = nn.Sequential(stage(1, 16), stage(16, 32), nn.Flatten(), nn.Linear(32 * 7 * 7, 10)).to(device)
    return net.to(memory_format=torch.channels_last) if device.type == "cpu" else net  # a third faster there


def prepare(images: Tensor) -> Tensor:
    """Convert bytes to the input of the network: mean 0 and standard deviation 1 over MNIST."""
    return images.unsqueeze(1).float().div_(255).sub_(0.1307).div_(0.3081)


def train(world: muster.World, args: argparse.Namespace) -> None:
    """Train, save, evaluate. Every rank runs this, with its own part of the images."""
    began = time.perf_counter()
    divide_cpus(world)
    images, labels, test_images, test_labels = load(world, args)  # all of them, as bytes on the device: 47 MB
    torch.manual_seed(args.seed)  # the same initial weights on all ranks
    model = conv_net(world.device)
    ddp = DistributedDataParallel(model)  # averages the gradients over all ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sampler = DistributedSampler(TensorDataset(images, labels), seed=args.seed, drop_last=True)  # a part for each rank
    position = Position(len(labels), args.batch_size, world)  # the epoch, and how many of its images are done

    # To save is to write the state of these three to --model_dir; to resume is to load the newest one on all ranks.
    state = {"model": model, "optimizer": optimizer, "position": position}
    about = {"images": len(labels), "seed": args.seed}  # must be the same when the run is resumed
    # In its first step DDP adds gradients in another order. With that behind it, a resumed run repeats every bit.
    muster.warm_up(ddp, lambda: cross_entropy(ddp(prepare(images[:9])), labels[:9]).backward())
    checkpoints = muster.Checkpoints(args.model_dir, world, keep=args.keep, about=about) if args.model_dir else None
    step = checkpoints.begin(state, resume=args.resume) if checkpoints else 0
    output = {"every": args.log_every, "metrics": args.metrics, "plot": args.plot}
    progress = muster.Progress(world, position, epochs=args.epochs, step=step, **output)
    if step:
        progress.say(f"resumed at step {step}, in epoch {position.progress:.2f}")

    while position.epoch < args.epochs:
        sampler.set_epoch(position.epoch)  # another order in each epoch
        mine = torch.tensor(list(sampler), device=world.device)  # indices of this rank's images
        for i in range(position.done_by_each, len(mine), args.batch_size):  # from 0, or where it resumes
            batch = mine[i : i + args.batch_size]
            progress.begin()
            done = position.progress / args.epochs  # the learning rate rises for a fifth of the run, then falls to 0
            optimizer.param_groups[0]["lr"] = args.lr * world.size * min(done / 0.2, (1 - done) / 0.8)
            optimizer.zero_grad()
            loss = cross_entropy(ddp(prepare(images[batch])), labels[batch])
            loss.backward()
            optimizer.step()
            position.advance(len(batch))
            progress.end(loss, len(batch) * world.size)
            if checkpoints and (progress.is_draining or (args.save_every and progress.step % args.save_every == 0)):
                progress.flush()  # raises an error if the loss is NaN or inf, so that nothing is saved then
                checkpoints.save(progress.step, state)
            if checkpoints and progress.is_draining:  # Muster starts the run again on another host
                checkpoints.close()
                return progress.say(f"saved step {progress.step}, because a host is about to go away")
        position.end_epoch()

    with progress.pause():
        accuracy = evaluate(model, test_images[world.rank :: world.size], test_labels[world.rank :: world.size])
    if checkpoints:
        checkpoints.save(progress.step, state)
        checkpoints.close()
    progress.note(accuracy=accuracy)
    progress.close()
    progress.say(f"trained and evaluated in {time.perf_counter() - began:.1f} s\naccuracy: {accuracy:.4f}")


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the fraction of the images of all ranks that are classified correctly."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # each rank has its own batch statistics
    model.eval()
    parts = zip(images.split(1000), labels.split(1000), strict=True)
    right = sum(int((model(prepare(some)).argmax(1) == theirs).sum()) for some, theirs in parts)
    counts = torch.tensor([right, len(labels)], device=labels.device)
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def work(args: argparse.Namespace, **rank: int) -> None:
    """Join the other ranks, train, and leave; the launcher says which rank this is, unless the caller does."""
    with muster.init(backend=args.backend, timeout=args.timeout, **rank) as world:
        train(world, args)


if __name__ == "__main__":
    args = parse("mnist", "Train a small ConvNet on MNIST with DDP, to 99 % in a minute on a laptop.")
    if args.share:  # for ranks of different speed
        from muster.recipes.mnist_unequal import work
    start(work, args)  # with -n, -g and -i as several processes, otherwise as this one
