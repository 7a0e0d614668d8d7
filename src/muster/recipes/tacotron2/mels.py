"""Mels of a corpus, computed once by one rank of each host and cached in one file; bad clips are reported."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import muster

from .audio import AudioSettings, mel_spectrogram, read_wav
from .data import Clip, Corpus
from .symbols import symbols_of, unknown_letters

READERS = 8
"""Number of threads that prefetch wav files."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The mels of a list of clips."""

    mels: Tensor
    """[frames of all clips, channels]."""
    frames: list[int]
    """Number of frames of each clip, 0 for a bad one."""
    bad: dict[str, str]
    """Why a clip cannot be used, by name."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A corpus, and the clips that were excluded."""

    corpus: Corpus
    clips: list[Clip]
    bad: dict[str, str]


def open_corpus(
    clips: Sequence[Clip],
    world: muster.World,
    settings: AudioSettings,
    *,
    cleaners: Sequence[Callable[[str], str]],
    cache: Sequence[Path],
    skip_bad: bool,
) -> Opened:
    """Load the clips of a list into memory; all ranks must call it together.

    The first rank of each host computes the mels and stores them in the first writable directory of `cache`.
    """

    def work() -> Kept:
        return keep_mels(clips, settings, cache, world.device)

    muster.together(world, lambda: work() if world.local_rank == 0 else None)
    return muster.together(world, lambda: choose(clips, work(), world.device, cleaners, skip_bad))


def choose(
    clips: Sequence[Clip], kept: Kept, device: torch.device, cleaners: Sequence[Callable[[str], str]], skip_bad: bool
) -> Opened:
    """Create a corpus of the usable clips; bad clips are an error unless they are to be skipped."""
    bad = {**kept.bad, **bad_texts(clips, cleaners)}
    if bad and not skip_bad:
        name, why = next(iter(bad.items()))
        more = f" (and {len(bad) - 1} more bad clips)" if len(bad) > 1 else ""
        raise muster.UsageError(f"{name}: {why}{more}", hint="use --skip-bad to skip such clips and list them")
    good = [i for i, clip in enumerate(clips) if clip.name not in bad]
    if not good:
        raise muster.UsageError(f"all {len(clips)} clips are bad", hint="remove --skip-bad to see the first error")
    mels = kept.mels
    if bad:
        pieces = mels.split(kept.frames)
        mels = torch.cat([pieces[i] for i in good])
    symbols = [torch.tensor(symbols_of(clips[i].text, cleaners)) for i in good]
    corpus = Corpus(symbols, mels, [kept.frames[i] for i in good], device)
    return Opened(corpus=corpus, clips=[clips[i] for i in good], bad=bad)


def bad_texts(clips: Iterable[Clip], cleaners: Sequence[Callable[[str], str]]) -> dict[str, str]:
    """Problems with the texts of clips, by clip name."""
    bad: dict[str, str] = {}
    for clip in clips:
        unknown = unknown_letters(clip.text, cleaners)
        if unknown:
            bad[clip.name] = f"its text has unknown letters: {unknown}"
        elif not symbols_of(clip.text, cleaners):
            bad[clip.name] = "its text is empty"
    return bad


def keep_mels(clips: Sequence[Clip], settings: AudioSettings, cache: Sequence[Path], device: torch.device) -> Kept:
    """Return the mels of clips from the cache, or compute and cache them."""
    name = f"mels-{fingerprint(clips, settings)}.pt"
    for folder in cache:
        found = read_cache(folder / name)
        if found:
            return found
    kept = compute(clips, settings, device)
    for folder in cache:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f"{name}.{os.uname().nodename}.{os.getpid()}"
            torch.save({"mels": kept.mels, "frames": kept.frames, "bad": kept.bad}, draft)
            draft.replace(folder / name)
            break
        except OSError:
            continue  # not writable; if no directory is, each run computes the mels again
    return kept


def read_cache(path: Path) -> Kept | None:
    """Read cached mels; None if the file does not exist or is damaged, so that they are computed again."""
    if not path.exists():
        return None
    try:
        return Kept(**torch.load(path, mmap=True, weights_only=True))
    except Exception:  # a damaged file can fail in any way
        return None


def fingerprint(clips: Sequence[Clip], settings: AudioSettings) -> str:
    """Changes with the list, with any of its files, and with the settings."""
    digest = hashlib.sha256(repr(settings).encode())
    for clip in clips:
        try:
            status = clip.path.stat()
            digest.update(f"{clip.name}|{status.st_size}|{status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{clip.name}|missing\n".encode())
    return digest.hexdigest()[:16]


def compute(clips: Sequence[Clip], settings: AudioSettings, device: torch.device) -> Kept:
    """Compute all mels; a bad clip gets none."""
    mels: list[Tensor] = []
    frames: list[int] = []
    bad: dict[str, str] = {}
    with ThreadPoolExecutor(READERS) as readers:
        for clip, content in zip(clips, readers.map(partial(read, settings=settings), clips), strict=True):
            if isinstance(content, str):
                bad[clip.name] = content
                frames.append(0)
                continue
            mel = content if clip.path.suffix == ".pt" else mel_spectrogram(content.to(device), settings)
            mels.append(mel.T.cpu())
            frames.append(mel.shape[1])
    flat = torch.cat(mels).contiguous() if mels else torch.empty(0, settings.n_mel_channels)
    return Kept(mels=flat, frames=frames, bad=bad)


def read(clip: Clip, settings: AudioSettings) -> Tensor | str:
    """Return the samples of a clip, or its mel if the list has mels (--load-mel-from-disk), or the error as text."""
    if clip.path.suffix == ".pt":
        try:
            mel: Any = torch.load(clip.path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can fail in any way
            return f"cannot read the mel {clip.path}: {str(error).partition(chr(10))[0]}"
        if not isinstance(mel, Tensor) or mel.ndim != 2 or mel.shape[0] != settings.n_mel_channels or not mel.shape[1]:
            return f"{clip.path} is not a mel with {settings.n_mel_channels} channels"
        return mel.float()
    try:
        return read_wav(clip.path, settings)
    except muster.UsageError as error:
        return str(error)
