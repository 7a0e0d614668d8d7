"""The clips of a corpus: lists of files, cached mels, and batches of clips of similar length."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import muster

from .symbols import SYMBOLS

WINDOW = 20
"""Number of batches whose clips are sorted by length together: enough to reduce padding, but the order stays random."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One line of a corpus."""

    name: str
    """Its name in messages."""
    path: Path
    text: str


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A batch on the device."""

    text: Tensor
    """[batch, symbols], padded with 0."""
    text_lengths: Tensor
    mels: Tensor
    """[batch, channels, frames], padded with 0.0."""
    mel_lengths: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """Clips, symbols, frames."""
        return (*self.text.shape, self.mels.shape[2])  # pyright: ignore[reportReturnType]


class Corpus:
    """Clips in memory, concatenated in two long tensors, on the device if they fit there, otherwise on the host."""

    def __init__(self, symbols: Sequence[Tensor], mels: Tensor, frames: Sequence[int], device: torch.device) -> None:
        self.frames = list(frames)
        """Number of frames of each clip."""
        self.symbols = [len(each) for each in symbols]
        """Number of symbols of each clip."""
        self._device = device
        home = device if fits(mels, device) else torch.device("cpu")
        self._text, self._mels = torch.cat(list(symbols)).to(home), mels.to(home)
        self._text_starts, self._text_lengths = starts_and_lengths(self.symbols, home)
        self._mel_starts, self._mel_lengths = starts_and_lengths(self.frames, home)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def on_device(self) -> bool:
        """Whether the corpus is on the device."""
        return self._mels.device.type == self._device.type

    def examples(self, indices: Sequence[int], symbols: int, frames: int) -> Examples:
        """Gather clips, padded to these lengths."""
        chosen = torch.tensor(indices, device=self._text.device)
        text_lengths, mel_lengths = self._text_lengths[chosen], self._mel_lengths[chosen]
        text = gather(self._text, self._text_starts[chosen], text_lengths, symbols)
        mels = gather(self._mels, self._mel_starts[chosen], mel_lengths, frames)
        tensors = (text, text_lengths, mels.transpose(1, 2), mel_lengths)
        moved = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
        return Examples(text=moved[0], text_lengths=moved[1], mels=moved[2], mel_lengths=moved[3])


def gather(flat: Tensor, starts: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Slices of a long tensor, each padded with zeros: [slices, width, ...]."""
    places = torch.arange(width, device=flat.device)
    inside = places < lengths[:, None]
    pieces = flat[torch.where(inside, starts[:, None] + places, 0)]
    return pieces * inside.view(*inside.shape, *[1] * (pieces.ndim - 2))


def starts_and_lengths(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Start and length of each of several consecutive slices."""
    sizes = torch.tensor(lengths, device=device)
    return sizes.cumsum(0) - sizes, sizes


def fits(mels: Tensor, device: torch.device) -> bool:
    """Whether the corpus fits into a quarter of the device's free memory, which leaves room for training."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return mels.numel() * mels.element_size() < free / 4


def synthetic(count: int, channels: int, device: torch.device, *, scale: float = 1.0, seed: int = 0) -> Corpus:
    """Synthetic clips with the lengths of LJSpeech: 566 frames on average, 870 at most, 5.7 frames per symbol.

    The lengths have a beta distribution with LJSpeech's mean (6.57 s), deviation and range, scaled by `scale`.
    """
    chance = random.Random(seed)
    frames = [max(4, round(scale * (96 + 774 * chance.betavariate(1.85, 1.19)))) for _ in range(count)]
    lengths = [max(2, min(round(188 * scale), round(each / 5.66 * chance.gauss(1, 0.08)))) for each in frames]
    generator = torch.Generator().manual_seed(seed)
    symbols = [torch.randint(1, len(SYMBOLS), (length,), generator=generator) for length in lengths]
    mels = torch.randn(sum(frames), channels, generator=generator).mul_(2).sub_(5)
    return Corpus(symbols, mels, frames, device)


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Batches are padded to multiples of these, so that there are few shapes, each with its own CUDA graph."""

    frames: int = 1
    symbols: int = 1


def bucketed_order(lengths: Sequence[int], total: int, *, seed: int, epoch: int) -> list[int]:
    """Return the order of an epoch's clips in which each batch of `total` has clips of similar length.

    Every rank gets the same list. Clips that do not fill a batch are dropped, different ones in each epoch.
    """
    chance = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    chance.shuffle(order)
    order = order[: len(order) // total * total]
    batches: list[list[int]] = []
    for start in range(0, len(order), total * WINDOW):
        window = sorted(order[start : start + total * WINDOW], key=lambda i: (lengths[i], i))
        batches += [window[first : first + total] for first in range(0, len(window), total)]
    chance.shuffle(batches)
    for batch in batches:  # so that no rank always gets the longest clips
        chance.shuffle(batch)
    return [clip for batch in batches for clip in batch]


@dataclass(frozen=True, kw_only=True)
class Part:
    """This rank's part of a batch."""

    examples: Examples
    frames: int
    """Number of frames of the whole batch over all ranks, without padding, for throughput."""


def training_parts(corpus: Corpus, batches: muster.Batches, padding: Padding) -> Iterator[Part]:
    """Iterate over the rest of an epoch."""
    order = bucketed_order(corpus.frames, batches.total, seed=batches.seed, epoch=batches.epoch)
    for batch in batches:
        whole = order[batch.end - batch.total : batch.end]
        share = batches.mine(batch.total)
        frames = round_up(max(corpus.frames[i] for i in whole), padding.frames)
        symbols = round_up(max(corpus.symbols[i] for i in whole), padding.symbols)
        examples = corpus.examples(whole[share.start : share.stop], symbols, frames)
        yield Part(examples=examples, frames=sum(corpus.frames[i] for i in whole))


def round_up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


def read_lists(args: argparse.Namespace) -> tuple[list[Clip], list[Clip]]:
    """Return the clips for training and validation, from metadata.csv or NVIDIA's file lists."""
    root = Path(args.dataset_path)
    if args.training_files:
        validation = read_file_list(Path(args.validation_files), root) if args.validation_files else []
        return read_file_list(Path(args.training_files), root), validation
    table = root / "metadata.csv"
    if not table.exists():
        what = "has no metadata.csv" if root.is_dir() else "does not exist"
        raise muster.UsageError(
            f"data directory {root} {what}",
            hint="use -d DIR (like LJSpeech-1.1), --training-files FILE, or --use_syn for synthetic data",
        )
    clips = [
        Clip(name=f"clip {fields[0]}", path=root / "wavs" / f"{fields[0]}.wav", text=fields[-1])
        for fields in (line.split("|") for line in read_lines(table))
    ]
    # Validation uses the same few clips in every run, whatever its seed.
    aside = set(random.Random(1234).sample(range(len(clips)), min(100, len(clips) // 20)))
    return [c for i, c in enumerate(clips) if i not in aside], [c for i, c in enumerate(clips) if i in aside]


def read_file_list(path: Path, root: Path) -> list[Clip]:
    """Read a list in NVIDIA's format, `FILE|TEXT` per line; files are relative to the data directory."""
    if not path.exists() and (root / path).exists():
        path = root / path
    clips: list[Clip] = []
    for number, line in enumerate(read_lines(path), 1):
        file, mark, text = line.partition("|")
        if not mark:
            raise muster.UsageError(f"{path}:{number}: expected FILE|TEXT, got {line[:60]}")
        places = (root / file, root / "wavs" / Path(file).name, Path(file))
        found = next((place for place in places if place.exists()), places[0])
        clips.append(Clip(name=f"clip {file}", path=found, text=text))
    return clips


def read_lines(path: Path) -> list[str]:
    """The lines of a file that are not empty."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise muster.UsageError(f"cannot read {path}: {error}") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise muster.UsageError(f"{path} lists no clips")
    return lines
