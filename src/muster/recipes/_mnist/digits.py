"""The images and labels of the MNIST recipes: from files, or synthetic."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import muster

from .mnist_files import FILES, download, find, read_idx


def load(world: muster.World, args: argparse.Namespace) -> list[Tensor]:
    """Return training images and labels and test images and labels, as bytes and integers on the device of this rank.

    If they cannot be used on one rank, all ranks end with its error.
    """

    def on_this_rank() -> list[Tensor]:
        tensors = synthetic(args.synthetic) if args.synthetic else from_files(world, args)
        total, length = args.batch_size * world.size, len(tensors[0])
        if total > length:
            ranks = f" ({args.batch_size} on each of {world.size} ranks)" if world.size > 1 else ""
            raise muster.UsageError(
                f"a batch of {total} samples{ranks} is larger than the data set, which has {length}",
                hint=f"use --batch_size {max(1, length // world.size)} or less",
            )
        return [tensor.to(world.device) for tensor in tensors]

    return muster.together(world, on_this_rank)


def from_files(world: muster.World, args: argparse.Namespace) -> list[Tensor]:
    """Read the four files; the first rank of each host downloads those that it does not have."""
    folder = Path(args.data)
    muster.together(world, lambda: download(folder) if world.local_rank == 0 else None)
    images, labels, test_images, test_labels = (read_idx(find(folder, name) or folder / name) for name in FILES)
    for some, others in ((images, labels), (test_images, test_labels)):
        if len(some) != len(others):
            raise muster.UsageError(f"{folder} has {len(some)} images but {len(others)} labels")
        if some.shape[1:] != (28, 28) or others.dim() != 1 or not others.numel() or others.max() > 9:
            raise muster.UsageError(f"{folder} does not have MNIST's images of 28x28 pixels with labels from 0 to 9")
    return [images, labels.long(), test_images, test_labels.long()]


def synthetic(count: int) -> list[Tensor]:
    """Draw `count` images for training and a fifth as many for the test."""
    return [*draw_digits(count, seed=1), *draw_digits(max(1, count // 5), seed=2)]


def draw_digits(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
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
