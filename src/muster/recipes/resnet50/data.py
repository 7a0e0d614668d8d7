"""The data of the recipe: CIFAR-10 and synthetic images, on the device as bytes; ImageNet is in imagenet.py."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import muster

Images = tuple[muster.Batch, Tensor, Tensor]
"""A part of a batch, its images as bytes [N, height, width, 3], and its labels; both on the device."""


class TestData(Protocol):
    """What an evaluation needs from a data set."""

    test_length: int

    def test(self, part: range, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over part of the test images in batches of `size`, without augmentation."""
        ...


class Data(TestData, Protocol):
    """What the training loop needs from a data set."""

    name: str
    classes: int
    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    train_length: int

    def train(self, batches: muster.Batches) -> Iterator[Images]:
        """Iterate over the rest of an epoch, with augmentation."""
        ...


def open_data(args: argparse.Namespace, world: muster.World) -> Data:
    """Open the data set of --data or --use_syn."""
    if args.use_syn:
        count = args.steps_syn * args.batch_size * args.accumulate * world.size
        return Synthetic(count, args.image_size, world.device)
    folder = Path(args.data)
    for place in (folder, folder / "cifar-10-batches-py"):
        if (place / "data_batch_1").exists():
            return Cifar10(place, world.device, cutout=args.cutout)
    if (folder / "train").is_dir():
        from .imagenet import ImageFolders

        return ImageFolders(folder, args.image_size, args.workers, args.random_seed, world.device)
    what = "has neither cifar-10-batches-py nor train/CLASS" if folder.is_dir() else "does not exist"
    raise muster.UsageError(
        f"data directory {folder} {what}", hint="set it with --data DIR, or use --use_syn for synthetic images"
    )


class Synthetic:
    """Synthetic images for measurements, created once on the device, with new labels for each step."""

    name, classes, test_length = "synthetic", 1000, 0
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def __init__(self, count: int, image_size: int, device: torch.device) -> None:
        self.train_length, self.image_size, self._device = count, image_size, device
        self._images = torch.empty(0, dtype=torch.uint8, device=device)

    def train(self, batches: muster.Batches) -> Iterator[Images]:
        """Repeat the same images, because their content does not affect the speed."""
        for batch in batches:
            count = len(batch.indices)
            if len(self._images) != count:
                shape = (count, self.image_size, self.image_size, 3)
                self._images = torch.randint(0, 256, shape, dtype=torch.uint8, device=self._device)
            yield batch, self._images, torch.randint(0, self.classes, (count,), device=self._device)

    def test(self, part: range, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """There is nothing to evaluate."""
        return iter(())


class Cifar10:
    """50,000 images of 32x32 and 10,000 for testing, as they come from https://www.cs.toronto.edu/~kriz/cifar.html."""

    name, classes, image_size = "CIFAR-10", 10, 32
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    margin = 4
    """Maximum shift of an image in pixels."""

    gray = 122
    """The mean pixel value, used for Cutout."""

    def __init__(self, folder: Path, device: torch.device, *, cutout: int = 0) -> None:
        self._cutout = cutout
        parts = [read_cifar(folder / f"data_batch_{i}") for i in range(1, 6) if (folder / f"data_batch_{i}").exists()]
        images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        test_images, test_labels = read_cifar(folder / "test_batch")
        # Pad with a mirrored margin, so that a shifted image has no black edge.
        last = self.image_size - 1
        mirrored = last - (last - torch.arange(-self.margin, self.image_size + self.margin).abs()).abs()
        self._images, self._labels = images[:, mirrored][:, :, mirrored].to(device), labels.to(device)
        self._test_images, self._test_labels = test_images.to(device), test_labels.to(device)
        self.train_length, self.test_length = len(images), len(test_images)

    def train(self, batches: muster.Batches) -> Iterator[Images]:
        """Shift each image randomly, mirror half of them, and add a gray square (Cutout)."""
        for batch in batches:
            yield batch, self._augment(batch.indices), self._labels[batch.indices]

    def _augment(self, indices: Tensor) -> Tensor:
        count, device, size = len(indices), indices.device, self.image_size
        corners = torch.randint(0, 2 * self.margin + 1, (2, count, 1), device=device)
        along = torch.arange(size, device=device)
        mirrored = torch.rand(count, 1, device=device) < 0.5
        rows, columns = corners[0] + along, corners[1] + torch.where(mirrored, size - 1 - along, along)
        images = self._images[indices[:, None, None], rows[:, :, None], columns[:, None, :]]
        middles = torch.randint(0, size, (2, count, 1), device=device)
        near = (2 * (along - middles)).abs() < self._cutout
        return images.masked_fill_((near[0][:, :, None] & near[1][:, None, :])[..., None], self.gray)

    def test(self, part: range, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Test images are not augmented."""
        for start in range(part.start, part.stop, size):
            some = slice(start, min(start + size, part.stop))
            yield self._test_images[some], self._test_labels[some]


class CifarUnpickler(pickle.Unpickler):
    """Reads only arrays, because an untrusted pickle could otherwise run any code."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Allow the classes and functions that make up an array."""
        arrays = {"_reconstruct", "ndarray", "dtype", "_frombuffer"}
        if module_name.split(".")[0] == "numpy" and global_name in arrays:
            return super().find_class(module_name, global_name)
        if (module_name, global_name) == ("_codecs", "encode"):  # bytes in pickles of Python 2
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"it contains {module_name}.{global_name}, which is not part of CIFAR-10")


def read_cifar(path: Path) -> tuple[Tensor, Tensor]:
    """Read one file of CIFAR-10: images as bytes [N, 32, 32, 3], and labels."""
    try:
        content: dict[bytes, Any] = CifarUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = torch.from_numpy(content[b"data"]), torch.tensor(content[b"labels"])
        images = pixels.view(len(labels), 3, 32, 32).permute(0, 2, 3, 1).contiguous()
        if images.dtype != torch.uint8 or labels.min() < 0 or labels.max() > 9:
            raise ValueError("it does not have bytes with labels from 0 to 9")
    except FileNotFoundError:
        raise muster.UsageError(f"{path} is missing", hint="unpack cifar-10-python.tar.gz again") from None
    except Exception as error:  # a damaged pickle can fail in any way
        text = f"{path} is damaged: {str(error).partition(chr(10))[0] or type(error).__name__}"
        raise muster.UsageError(text, hint="unpack cifar-10-python.tar.gz again") from None
    return images, labels
