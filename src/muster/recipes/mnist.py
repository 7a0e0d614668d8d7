"""Train a small ConvNet on MNIST with DDP, to 99 % in a minute on a laptop.

    muster run -m muster.recipes.mnist --data DIR                every GPU of this machine
    muster run -H gpu[01-04]:8,box:2 -m muster.recipes.mnist
    torchrun --nproc-per-node 2 -m muster.recipes.mnist
    mpirun -np 2 python -m muster.recipes.mnist
    python -m muster.recipes.mnist                               one process
    python -m muster.recipes.mnist -n 2 -g 8,2 -i 0 --master-addr node0
                                                                 8 processes here; on node1 the same with -i 1

The four idx files are read from DIR, compressed or not, and downloaded if missing. The last line printed is the
accuracy on the test images, each counted once:

    accuracy: 0.9920
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import argparse
import copy
import gzip
import hashlib
import logging
import os
import struct
import sys
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import muster
from muster.recipes._flag_types import integer, number, seed, timeout

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FILES = {  # with the MD5 sums that torchvision also checks
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
DOWNLOAD_LIMIT = 20.0
"""Timeout of a mirror in seconds."""


def build_parser() -> argparse.ArgumentParser:
    """All options, one line each."""
    parser = argparse.ArgumentParser(
        prog="mnist",
        usage="%(prog)s [options]; --help shows them",
        description="Train a small ConvNet on MNIST with DDP, to 99 % in a minute on a laptop.",
        epilog="example: muster run --nproc 2 -m muster.recipes.mnist --epochs 2 --model_dir runs/mnist",
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("--data", default="data/mnist", help="directory of the idx files; missing ones are downloaded")
    synthetic: dict[str, Any] = {"dest": "synthetic", "type": integer(), "nargs": "?", "const": 10_000, "metavar": "N"}
    option("--synthetic", help="train on N synthetic digits instead of files (default: 10000)", **synthetic)
    option("--made_up", "--made-up", help=argparse.SUPPRESS, **synthetic)  # the former name
    option("--epochs", type=integer(), default=3, help="number of passes over the training images (default: 3)")
    option("--batch_size", type=integer(), default=100, help="images per step and process (default: 100)")
    option("--lr", type=number(above=0), default=0.05, help="peak learning rate, times the number of processes (0.05)")
    option("--seed", type=seed(), default=0, help="seed of the initial weights and the image order (default: 0)")
    option("--share", help="share of each batch for every rank: 8,2 or measured (default: equal)")
    option("--backend", choices=("nccl", "gloo", "mpi"), help="default: nccl with GPUs, else gloo")
    # Output.
    option("--model_dir", help="save checkpoints to this directory (default: save none)")
    option("--save_every", type=integer(0), default=200, metavar="N", help="steps per checkpoint (200); and at the end")
    option("--keep", type=integer(), default=2, help="number of checkpoints to keep (default: 2)")
    option("--resume", action="store_true", help="continue from the newest complete checkpoint in --model_dir")
    option("--log_every", type=integer(), default=100, metavar="STEPS", help="steps per line of output (default: 100)")
    option("--metrics", metavar="DIR", help="write metrics.jsonl and, if installed, TensorBoard logs to DIR")
    option("--plot", metavar="FILE", help="plot loss and throughput as SVG")
    # Without a launcher, this process starts the ranks of its node itself.
    option("-n", "--nodes", type=integer(), help="number of nodes, each started by hand")
    option("-g", "--gpus", help="processes on each node: 8, or 8,2 if they differ")
    option("-i", "--id", type=integer(0), default=0, help="index of this node, from 0")
    option("--master-addr", help="address of node 0 (default: MASTER_ADDR)")
    option("--master-port", type=integer(1, 65535), help="a free port there (default: MASTER_PORT or 29500)")
    option("--timeout", type=timeout(), help="seconds to wait for the other ranks (default: 300)")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    option("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Train in the world created by a launcher, or start the ranks of this node."""
    parser = build_parser()
    args = parser.parse_args()
    try:
        if args.nodes is not None or args.gpus is not None:
            spawn_node(args)
            return
        with muster.init(backend=args.backend, timeout=args.timeout) as world:
            train(world, args)
    except muster.MusterError as error:
        parser.exit(error.exit_code, error.report())


class ConvNet(nn.Sequential):
    """Two convolutions and a linear layer: 29,000 parameters."""

    def __init__(self) -> None:
        def stage(inputs: int, outputs: int) -> nn.Sequential:
            convolution = nn.Conv2d(inputs, outputs, kernel_size=5, padding=2, bias=False)
            # Pooling comes before normalization, which then has a quarter of the work.
            return nn.Sequential(convolution, nn.MaxPool2d(2), nn.BatchNorm2d(outputs), nn.ReLU())

        super().__init__(stage(1, 16), stage(16, 32), nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


def prepare(images: Tensor) -> Tensor:
    """Convert bytes to the input of the network: mean 0 and standard deviation 1 over MNIST."""
    return images.unsqueeze(1).float().div_(255).sub_(0.1307).div_(0.3081)


def train(world: muster.World, args: argparse.Namespace) -> None:
    """Train, save, evaluate."""
    began = time.perf_counter()
    device = world.device
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.local_size))
    # All images stay on the device as bytes: 47 MB.
    images, labels, test_images, test_labels = muster.together(world, lambda: load(world, args))
    images, labels = images.to(device), labels.to(device)

    torch.manual_seed(args.seed)
    model = ConvNet().to(device)
    if device.type == "cpu":  # a third faster there
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    batches = muster.together(world, lambda: divide(world, args, ddp, images, labels))

    first = images[: args.batch_size], labels[: args.batch_size]
    muster.warm_up(ddp, lambda: cross_entropy(ddp(prepare(first[0])), first[1]).backward())
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpoints = muster.Checkpoints(args.model_dir, world, keep=args.keep) if args.model_dir else None
    step = checkpoints.begin(state, resume=args.resume) if checkpoints else 0
    progress = muster.Progress(
        world, batches, epochs=args.epochs, step=step, every=args.log_every, metrics=args.metrics, plot=args.plot
    )
    if step:
        progress.say(f"resumed at step {step}, in epoch {batches.progress:.2f}")

    while batches.epoch < args.epochs:
        ddp.train()
        for batch in batches:
            progress.begin()
            optimizer.param_groups[0]["lr"] = args.lr * world.size * learning_rate(batch.progress / args.epochs)
            optimizer.zero_grad()
            # The weight accounts for unequal shares: see muster.Batch.
            loss = cross_entropy(ddp(prepare(images[batch.indices])), labels[batch.indices]) * batch.weight
            loss.backward()
            optimizer.step()
            progress.end(loss, batch.total)
            is_due = args.save_every and progress.step % args.save_every == 0
            if checkpoints and (is_due or progress.is_draining):
                progress.flush()  # raises an error if the loss is NaN or inf, so that nothing is saved then
                checkpoints.save(progress.step, state)
            if checkpoints and progress.is_draining:
                return leave(progress, checkpoints)

    with progress.pause():
        accuracy = evaluate(world, model, test_images, test_labels, batches.mine(len(test_images)))
    if checkpoints:
        checkpoints.save(progress.step, state)
        checkpoints.close()
    progress.note(accuracy=accuracy)
    progress.close()
    progress.say(f"trained and evaluated in {time.perf_counter() - began:.1f} s")
    progress.say(f"accuracy: {accuracy:.4f}")


def leave(progress: muster.Progress, checkpoints: muster.Checkpoints) -> None:
    """Wait until the last checkpoint is on disk; the run continues from it on other hosts."""
    checkpoints.close()
    progress.say(f"saved step {progress.step}, because a host is about to go away")


def learning_rate(done: float) -> float:
    """Rise from 0 to 1 over the first fifth of the run, then fall to 0."""
    return done / 0.2 if done < 0.2 else (1 - done) / 0.8


def divide(
    world: muster.World, args: argparse.Namespace, ddp: DistributedDataParallel, images: Tensor, labels: Tensor
) -> muster.Batches:
    """Parse --share, numbers or `measured`, and divide the images accordingly."""
    shares: list[float] | None = None
    if args.share == "measured":
        shares = measure(world, ddp.module, prepare(images[: args.batch_size]), labels[: args.batch_size])
    elif args.share:
        try:
            shares = [float(share) for share in args.share.split(",")]
        except ValueError:
            text = f"invalid --share {args.share}"
            raise muster.UsageError(text, hint="use --share 8,2 or --share measured") from None
    return muster.Batches(len(images), args.batch_size, world, shares=shares, seed=args.seed, device=world.device)


def measure(world: muster.World, model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    """Let every rank train a copy of the model on its own for a second to measure its speed."""
    trial = copy.deepcopy(model)
    shares = muster.measure_shares(world, lambda: cross_entropy(trial(images), labels).backward())
    if world.rank == 0:
        print("measured shares:", ", ".join(f"{share:.1f}" for share in shares), flush=True)
    return shares


@torch.no_grad()
def evaluate(world: muster.World, model: nn.Module, images: Tensor, labels: Tensor, mine: range) -> float:
    """Return the fraction of test images that are classified correctly; each rank evaluates its own part."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # each rank has its own batch statistics
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=world.device)
    for start in range(mine.start, mine.stop, 1000):
        part = slice(start, min(start + 1000, mine.stop))
        guesses = model(prepare(images[part].to(world.device))).argmax(1)
        right += (guesses == labels[part].to(world.device)).sum()
    dist.all_reduce(right)
    return right.item() / len(images)


def load(world: muster.World, args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels and test images and labels, as bytes and integers on the CPU."""
    if args.synthetic:
        return *synthetic_digits(args.synthetic, seed=1), *synthetic_digits(max(1, args.synthetic // 5), seed=2)
    folder = Path(args.data)
    muster.together(world, lambda: download(folder) if world.local_rank == 0 else None)
    images, labels, test_images, test_labels = (read_idx(find(folder, name) or folder / name) for name in FILES)
    for some, others in ((images, labels), (test_images, test_labels)):
        if len(some) != len(others):
            raise muster.UsageError(f"{folder} has {len(some)} images but {len(others)} labels")
        if some.shape[1:] != (28, 28) or others.dim() != 1 or not others.numel() or others.max() > 9:
            raise muster.UsageError(f"{folder} does not have MNIST's images of 28x28 pixels with labels from 0 to 9")
    return images, labels.long(), test_images, test_labels.long()


def find(folder: Path, name: str) -> Path | None:
    """Return the path of an MNIST file, compressed or not, if it exists."""
    return next((path for path in (folder / name.removesuffix(".gz"), folder / name) if path.exists()), None)


def read_idx(path: Path) -> Tensor:
    """Read a file in idx format, compressed or not: two zero bytes, type, dimensions, sizes, data."""
    again = "remove the file to download it again"
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise muster.UsageError(f"cannot read {path}: {error}", hint=again) from None
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(content) < start:
        raise muster.UsageError(f"{path} is not an idx file of bytes", hint=again)
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:]
    wanted = torch.Size(sizes).numel()
    if len(data) != wanted:
        raise muster.UsageError(f"{path} has {len(data):,} bytes of data instead of {wanted:,}", hint=again)
    return data.reshape(sizes)


def download(folder: Path) -> None:
    """Download missing files; each is checked and written atomically."""
    for name, md5 in FILES.items():
        if find(folder, name):
            continue
        troubles = [fetch(mirror + name, folder / name, md5) for mirror in MIRRORS]
        if all(troubles):
            raise muster.UsageError(
                f"{folder} has no {name}, and the download failed: {'; '.join(troubles)}",
                hint="point --data DIR to the four idx files, or use --synthetic to train without them",
            )


def fetch(url: str, target: Path, md5: str) -> str:
    """Download one file; return the error, or an empty string on success."""
    if target.exists():
        return ""
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_LIMIT) as response:
            content = response.read()
        if hashlib.md5(content).hexdigest() != md5:
            return f"{url} has the wrong MD5 sum"
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"{target.name}.{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(target)
    except urllib.error.HTTPError as error:
        return f"{url}: {error}"
    except OSError as error:
        return f"{url}: {getattr(error, 'reason', error)}"
    return ""


def synthetic_digits(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Draw seven-segment digits at random positions, with noise."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    # The seven segments as rows and columns of a 28x28 image, and which of them each digit uses.
    segments = [(4, 6, 8, 20), (4, 14, 8, 10), (4, 14, 18, 20), (13, 15, 8, 20), (14, 24, 8, 10), (14, 24, 18, 20)]
    segments.append((22, 24, 8, 20))
    lit = ["012456", "25", "02346", "02356", "1235", "01356", "013456", "025", "0123456", "012356"]
    shapes = torch.zeros(10, 28, 28)
    for digit, names in enumerate(lit):
        for top, bottom, left, right in (segments[int(name)] for name in names):
            shapes[digit, top:bottom, left:right] = 1.0
    labels = draw(0, 10)
    rows = (torch.arange(28) - draw(-3, 4)[:, None]) % 28
    columns = (torch.arange(28) - draw(-6, 7)[:, None]) % 28
    moved = shapes[labels[:, None, None], rows[:, :, None], columns[:, None, :]]
    noise = 0.25 * torch.randn(count, 28, 28, generator=generator)
    return (moved * 0.8 + noise).clamp_(0, 1).mul_(255).byte(), labels


def spawn_node(args: argparse.Namespace) -> None:
    """Start the ranks of this node with mp.spawn, and raise the error that one of them reports."""
    found = muster.detect(os.environ, sys.argv)
    if found.launcher != "python":
        raise muster.UsageError(f"{found.launcher} has already started this process", hint="remove -n, -g and -i")
    counts = processes_per_node(args.nodes, args.gpus)
    if not 0 <= args.id < len(counts):
        raise muster.UsageError(f"-i must be from 0 to {len(counts) - 1}, got {args.id}")
    os.environ.update({"MASTER_ADDR": args.master_addr} if args.master_addr else {})
    os.environ.update({"MASTER_PORT": str(args.master_port)} if args.master_port else {})
    if len(counts) > 1 and not os.environ.get("MASTER_ADDR"):
        raise muster.UsageError("the address of node 0 is unknown", hint="pass --master-addr ADDRESS on all nodes")
    errors = mp.get_context("spawn").SimpleQueue()
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it warns about each rank that it ends
    try:
        mp.spawn(work, (sum(counts[: args.id]), sum(counts), args, errors), nprocs=counts[args.id])
    except mp.ProcessExitedException as ended:
        if errors.empty():
            raise
        error: muster.MusterError = errors.get()
        if len(counts) > 1 and not isinstance(error, muster.UsageError):
            error.hint = f"{whereabouts(counts)}; each node needs the same -n, -g and --master-addr"
        raise error from ended


def whereabouts(counts: list[int]) -> str:
    """Describe which ranks are on which node: `-i 0 has ranks 0 to 7, -i 1 has rank 8`."""
    firsts = [sum(counts[:node]) for node in range(len(counts))]
    ranks = [f"ranks {f} to {f + c - 1}" if c > 1 else f"rank {f}" for f, c in zip(firsts, counts, strict=True)]
    return ", ".join(f"-i {node} has {those}" for node, those in enumerate(ranks))


def processes_per_node(nodes: int | None, text: str | None) -> list[int]:
    """Parse -n and -g: `-g 8,2` means two nodes, `-n 2 -g 8` two nodes with 8 processes each."""
    try:
        counts = [int(count) for count in (text or "1").split(",")]
    except ValueError:
        counts = [0]
    counts = counts * (1 if nodes is None else nodes) if len(counts) == 1 else counts
    if min(counts, default=0) < 1 or nodes not in (None, len(counts)):
        given = " ".join(f"{flag} {value}" for flag, value in (("-n", nodes), ("-g", text)) if value is not None)
        raise muster.UsageError(f"invalid {given}", hint="for two nodes with 8 and 2 processes: -n 2 -g 8,2")
    return counts


def work(local_rank: int, first: int, size: int, args: argparse.Namespace, errors: Any) -> None:
    """Run one rank of a node and report an error to the process that started it."""
    rank = first + local_rank
    try:
        with muster.init(
            rank=rank, world_size=size, local_rank=local_rank, backend=args.backend, timeout=args.timeout
        ) as world:
            train(world, args)
    except muster.MusterError as error:
        if not error.silent:
            errors.put(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
