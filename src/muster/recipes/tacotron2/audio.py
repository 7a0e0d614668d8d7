"""Wav files, mel spectrograms as NVIDIA's models expect them, and Griffin-Lim to turn them back into sound."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import wave
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

import muster

QUIETEST = 1e-5
"""Minimum magnitude; smaller ones are raised to it before the logarithm."""


@dataclass(frozen=True, kw_only=True)
class AudioSettings:
    """Parameters of the mel spectrogram."""

    sampling_rate: int = 22050
    filter_length: int = 1024
    hop_length: int = 256
    win_length: int = 1024
    mel_fmin: float = 0.0
    mel_fmax: float = 8000.0
    n_mel_channels: int = 80
    max_wav_value: float = 32768.0


def read_wav(path: Path, settings: AudioSettings) -> Tensor:
    """Read a clip as samples between -1 and 1, or raise a UsageError if it cannot be used."""
    try:
        with wave.open(str(path), "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            content = file.readframes(file.getnframes())
    except FileNotFoundError:
        raise muster.UsageError(f"{path} does not exist") from None
    except (OSError, EOFError, wave.Error) as error:
        raise muster.UsageError(f"cannot read the wav file {path}: {error or 'it is truncated'}") from None
    if rate != settings.sampling_rate:
        raise muster.UsageError(
            f"{path} has {rate} samples per second, expected {settings.sampling_rate}",
            hint=f"convert it (sox {path.name} -r {settings.sampling_rate} out.wav), or use --sampling-rate {rate}",
        )
    if channels != 1:
        raise muster.UsageError(
            f"{path} has {channels} channels, expected one",
            hint=f"mix them: sox {path.name} out.wav channels 1",
        )
    if width != 2:
        raise muster.UsageError(f"{path} has {8 * width} bits per sample, expected 16")
    samples = torch.frombuffer(bytearray(content), dtype=torch.int16) if content else torch.empty(0)
    if len(samples) <= settings.filter_length // 2:
        raise muster.UsageError(f"{path} is too short: {len(samples)} samples")
    return samples.float() / settings.max_wav_value


def write_wav(path: Path, samples: Tensor, rate: int) -> None:
    """Write samples between -1 and 1 with 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clamp(-1, 1) * 32767).short().cpu().numpy().tobytes())


def mel_spectrogram(samples: Tensor, settings: AudioSettings) -> Tensor:
    """Return the logarithm of the mel spectrogram: [channels, samples // hop + 1]."""
    magnitudes = transform(samples, settings).abs()
    filters = filterbank(settings).to(samples.device)
    return torch.log((filters @ magnitudes).clamp(min=QUIETEST))


def transform(samples: Tensor, settings: AudioSettings) -> Tensor:
    """The short-time Fourier transform, [frequencies, frames]."""
    window = torch.hann_window(settings.win_length, device=samples.device)
    return torch.stft(
        samples,
        settings.filter_length,
        settings.hop_length,
        settings.win_length,
        window,
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )


@lru_cache(maxsize=4)
def filterbank(settings: AudioSettings) -> Tensor:
    """Slaney's triangular filters, each of area 1, as in librosa: [channels, frequencies]."""
    count = settings.n_mel_channels
    low, high = to_mel(settings.mel_fmin), to_mel(settings.mel_fmax)
    corners = torch.tensor(
        [from_mel(low + (high - low) * i / (count + 1)) for i in range(count + 2)], dtype=torch.float64
    )
    frequencies = torch.linspace(0, settings.sampling_rate / 2, settings.filter_length // 2 + 1, dtype=torch.float64)
    widths = corners.diff()[:, None]
    slopes = corners[:, None] - frequencies
    triangles = torch.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]).clamp(min=0)
    return (triangles * (2 / (corners[2:] - corners[:-2]))[:, None]).float()


def to_mel(frequency: float) -> float:
    """Slaney's scale: linear up to 1,000 Hz, logarithmic above."""
    if frequency < 1000:
        return frequency * 3 / 200
    return 15 + math.log(frequency / 1000) * 27 / math.log(6.4)


def from_mel(mel: float) -> float:
    """Undo `to_mel`."""
    return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)


def griffin_lim(mel: Tensor, settings: AudioSettings, *, rounds: int = 60, seed: int = 0) -> Tensor:
    """Convert the logarithm of a mel spectrogram, [channels, frames], to sound by estimating consistent phases.

    The fast variant of Perraudin, Balazs and Søndergaard (2013), with a momentum of 0.99.
    """
    filters = filterbank(settings).to(mel.device)
    magnitudes = (torch.linalg.pinv(filters) @ mel.float().exp()).clamp(min=0)
    window = torch.hann_window(settings.win_length, device=mel.device)
    generator = torch.Generator().manual_seed(seed)
    turns = torch.rand(magnitudes.shape, generator=generator).to(mel.device)
    phases, before = (
        torch.polar(torch.ones_like(turns), 2 * math.pi * turns),
        torch.zeros_like(turns, dtype=torch.cfloat),
    )

    def sound(spectrum: Tensor) -> Tensor:
        return torch.istft(spectrum, settings.filter_length, settings.hop_length, settings.win_length, window)

    for _ in range(rounds):
        rebuilt = transform(sound(magnitudes * phases), settings)
        moved = rebuilt - before * (0.99 / 1.99)
        phases = moved / moved.abs().clamp(min=1e-16)
        before = rebuilt
    return sound(magnitudes * phases)
