"""Speak: text to a mel spectrogram, its alignment as a picture, and sound by Griffin and Lim.

    python -m muster.recipes.tacotron2.infer -c out "Hello, world." -w hello.wav
    python -m muster.recipes.tacotron2.infer -c checkpoint_Tacotron2_1500.pt --file lines.txt -w spoken

-c is the --output of a training, its tacotron2.pt, or a checkpoint of NVIDIA's training. -w names the sound; beside it
are a picture (.png: where the network looked, and the mel) and the mel itself (.pt), for a vocoder of one's own.
"""

# torch is typed in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

import muster

from .audio import AudioSettings, griffin_lim, write_wav
from .data import read_lines
from .model import Tacotron2
from .original import audio_of, load_weights, read_original, sizes_of
from .pictures import draw_clip
from .symbols import find_cleaners, symbols_of


def main() -> None:
    """Speak every text into a file."""
    args = parse()
    try:
        speak(args)
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tacotron2.infer",
        description="Speak texts into files.",
        epilog='example: python -m muster.recipes.tacotron2.infer -c out "Hello, world."',
        allow_abbrev=False,
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="what to say")
    parser.add_argument("--file", help="more texts, one in each line")
    parser.add_argument("-c", "--checkpoint", required=True, help="--output of a training, or a file with weights")
    parser.add_argument(
        "-w", "--wav", default="spoken.wav", help="the sound; with several texts spoken-1.wav and so on"
    )
    parser.add_argument("--text-cleaners", nargs="*", default=["english_cleaners"], help="(english_cleaners)")
    parser.add_argument("--gate-threshold", type=float, default=0.5, help="how sure of its end a clip must be (0.5)")
    parser.add_argument("--max-decoder-steps", type=int, default=2000, help="frames of the longest clip (2000)")
    parser.add_argument("--sampling-rate", type=int, help="(that of the training, where tacotron2.pt says it; 22050)")
    parser.add_argument("--rounds", type=int, default=60, help="of Griffin and Lim's method (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the dropout that is on while speaking too (0)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    args = parser.parse_args()
    if not args.texts and not args.file:
        parser.error("there is nothing to say: give a TEXT or --file")
    return args


def load(path: Path) -> tuple[Tacotron2, AudioSettings]:
    """Return the network of a training's folder or of a file, and how its mels become sound."""
    file = path / "tacotron2.pt" if path.is_dir() else path
    original = read_original(file)
    try:
        model, audio = Tacotron2(sizes_of(original)), audio_of(original)
    except (TypeError, ValueError) as error:
        raise muster.UsageError(f"{file} has a config that describes no Tacotron2: {error}") from None
    load_weights(model, original, file)
    return model.eval(), replace(audio, n_mel_channels=model.sizes.n_mel_channels)


def speak(args: argparse.Namespace) -> None:
    """Speak every text."""
    texts = [*args.texts, *(read_lines(Path(args.file)) if args.file else [])]
    cleaners = find_cleaners(args.text_cleaners)
    model, settings = load(Path(args.checkpoint))
    model = model.to(args.device)
    settings = replace(settings, sampling_rate=args.sampling_rate or settings.sampling_rate)
    target = Path(args.wav)
    for number, text in enumerate(texts, 1):
        numbers = symbols_of(text, cleaners)
        if not numbers:
            raise muster.UsageError(f"text {number} has nothing that can be spoken: {text!r}")
        torch.manual_seed(args.seed)
        symbols = torch.tensor([numbers], device=args.device)
        lengths = torch.tensor([len(numbers)], device=args.device)
        outputs, ends = model.infer(symbols, lengths, threshold=args.gate_threshold, most=args.max_decoder_steps)
        end = int(ends[0])
        mel = outputs.refined[0, :, :end].float()
        path = target if len(texts) == 1 else target.with_name(f"{target.stem}-{number}{target.suffix}")
        write_wav(path, griffin_lim(mel, settings, rounds=args.rounds), settings.sampling_rate)
        draw_clip(path.with_suffix(".png"), outputs.alignments[0, :end], mel)
        torch.save(mel.cpu(), path.with_suffix(".pt"))
        stopped = "" if end < args.max_decoder_steps else "; the gate did not say stop"
        print(f"{path}: {end} frames, {end * settings.hop_length / settings.sampling_rate:.1f} s{stopped}", flush=True)


if __name__ == "__main__":
    main()
