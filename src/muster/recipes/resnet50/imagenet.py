"""ImageNet and similar data: `train` and `val` with one directory of images per class, decoded by workers."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import muster

if TYPE_CHECKING:
    from .data import Images

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
AHEAD = 3
"""Number of batches that each worker prefetches."""


class ImageFolders:
    """A data set of image files; every rank has its own workers, and copies overlap with training."""

    name = "ImageNet"
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, folder: Path, image_size: int, workers: int, seed: int, device: torch.device) -> None:
        pillow()
        names = sorted(entry.name for entry in os.scandir(folder / "train") if entry.is_dir())
        self._train, self._test = list_images(folder / "train", names), list_images(folder / "val", names)
        self.classes, self.train_length, self.test_length = len(names), len(self._train), len(self._test)
        self.image_size, self._workers, self._seed, self._device = image_size, workers, seed, device
        if not self._train:
            raise muster.UsageError(f"{folder}/train has no images", hint="the expected layout is train/CLASS/*.jpeg")

    def train(self, batches: muster.Batches) -> Iterator[Images]:
        """Random crops of random sizes, half of them mirrored; the same in every run with the same seed."""
        plan = [batch.indices.tolist() for batch in batches.rest_of_epoch()]
        files = Files(self._train, self.image_size, seed=(self._seed, batches.epoch))
        for batch, (images, labels) in zip(batches, self._load(files, plan), strict=True):
            yield batch, images, labels

    def test(self, part: range, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The center of each image."""
        plan = [list(part[start : start + size]) for start in range(0, len(part), size)]
        return self._load(Files(self._test, self.image_size), plan)

    def _load(self, files: Files, plan: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Iterable[Any] = DataLoader(
            files,
            batch_sampler=plan,
            num_workers=min(self._workers, len(plan)),
            prefetch_factor=AHEAD if self._workers and plan else None,
            collate_fn=collate,
            pin_memory=self._device.type == "cuda",
        )
        checked = (check(batch) for batch in loader)
        return copied_ahead(checked, self._device) if self._device.type == "cuda" else checked


class Files(Dataset[Any]):
    """Decodes image number i, with random augmentation if there is a seed."""

    def __init__(self, files: Sequence[tuple[str, int]], size: int, seed: tuple[int, int] | None = None) -> None:
        self._files, self._size, self._seed = files, size, seed

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | str:
        path, label = self._files[index]
        chance = None if self._seed is None else random.Random(hash((*self._seed, index)))
        try:
            return decode(path, self._size, chance), label
        except (OSError, ValueError, SyntaxError) as error:  # Pillow raises these for files that are not images
            return f"cannot read {path}: {error}"


def list_images(folder: Path, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return each image of each class with the number of its class."""
    if not folder.is_dir():
        raise muster.UsageError(f"{folder} is missing", hint=f"the expected layout is {folder}/CLASS/*.jpeg")
    unknown = sorted({entry.name for entry in os.scandir(folder) if entry.is_dir()} - set(names))
    if unknown:
        raise muster.UsageError(f"{folder} has a class {unknown[0]} that is missing in train")
    return [
        (entry.path, label)
        for label, name in enumerate(names)
        if (folder / name).is_dir()
        for entry in sorted(os.scandir(folder / name), key=lambda entry: entry.name)
        if entry.name.lower().endswith(SUFFIXES)
    ]


def decode(path: str, size: int, chance: random.Random | None) -> Tensor:
    """Read an image and crop a square from it: bytes [size, size, 3]."""
    image_module = pillow()
    with image_module.open(path) as image:
        width, height = image.size
        box = random_box(width, height, chance) if chance else middle_box(width, height)
        # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the cost.
        shrink = size / min(box[2] - box[0], box[3] - box[1])
        image.draft("RGB", (int(width * shrink), int(height * shrink)))
        zoom = image.size[0] / width
        scaled = tuple(min(edge * zoom, limit) for edge, limit in zip(box, image.size * 2, strict=True))
        smooth = image_module.Resampling.BILINEAR
        square = image.convert("RGB").resize((size, size), smooth, box=scaled, reducing_gap=2.0)
        if chance and chance.random() < 0.5:
            square = square.transpose(image_module.Transpose.FLIP_LEFT_RIGHT)
        return torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(size, size, 3)


def pillow() -> Any:
    """Return Pillow's Image module, which only this data set needs."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise muster.UsageError("directories of images need Pillow", hint="pip install pillow") from None


Box = tuple[float, float, float, float]


def random_box(width: int, height: int, chance: random.Random) -> Box:
    """A crop of 8 to 100 % of the area with an aspect ratio from 3/4 to 4/3 (Inception's augmentation)."""
    for _ in range(10):
        area = width * height * chance.uniform(0.08, 1.0)
        ratio = 2.0 ** chance.uniform(-0.415, 0.415)  # from 3/4 to 4/3
        w, h = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if w <= width and h <= height:
            left, top = chance.uniform(0, width - w), chance.uniform(0, height - h)
            return left, top, left + w, top + h
    return middle_box(width, height, share=1.0)


def middle_box(width: int, height: int, *, share: float = 224 / 256) -> Box:
    """The square in the center, without the border that training crops rarely show."""
    side = min(width, height) * share
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def collate(samples: Sequence[tuple[Tensor, int] | str]) -> tuple[Tensor, Tensor] | str:
    """Assemble a batch, or return an error as text, because an exception would arrive as a worker's traceback."""
    trouble = next((sample for sample in samples if isinstance(sample, str)), None)
    if trouble is not None:
        return trouble
    good = [sample for sample in samples if not isinstance(sample, str)]
    return torch.stack([image for image, _ in good]), torch.tensor([label for _, label in good])


def check(batch: tuple[Tensor, Tensor] | str) -> tuple[Tensor, Tensor]:
    """Raise the error of a worker."""
    if isinstance(batch, str):
        raise muster.UsageError(batch, hint="remove the file, or download it again")
    return batch


def copied_ahead(batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Copy the next batch to the GPU in a separate stream while the current one is used for training."""
    stream = torch.cuda.Stream(device)
    move = partial(torch.Tensor.to, device=device, non_blocking=True)
    ready: tuple[Tensor, Tensor] | None = None
    for images, labels in batches:
        with torch.cuda.stream(stream):
            coming = move(images), move(labels)
        if ready is not None:
            yield ready
        torch.cuda.current_stream(device).wait_stream(stream)
        for tensor in coming:
            tensor.record_stream(torch.cuda.current_stream(device))
        ready = coming
    if ready is not None:
        yield ready
