"""Synthesize speech: a mel spectrogram from text, its alignment as an image, and sound by Griffin-Lim.

    python -m muster.recipes.tacotron2.infer -c out "Hello, world." -w hello.wav
    python -m muster.recipes.tacotron2.infer -c checkpoint_Tacotron2_1500.pt --file lines.txt -w spoken

-c is the --output of a training, its tacotron2.pt, or a checkpoint of NVIDIA's training. -w is the sound file; next to
it are an image (.png: the alignment and the mel) and the mel itself (.pt), for use with another vocoder.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

import muster
from muster.recipes._flag_types import integer, number, seed

from .audio import AudioSettings, griffin_lim, write_wav
from .data import read_lines
from .model import Tacotron2
from .original import audio_of, load_weights, read_original, sizes_of
from .pictures import draw_clip
from .symbols import find_cleaners, symbols_of


def main() -> None:
    """Write each text as speech to a file."""
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
        description="Synthesize speech from text.",
        epilog='example: python -m muster.recipes.tacotron2.infer -c out "Hello, world."',
        allow_abbrev=False,
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="what to say")
    parser.add_argument("--file", help="more texts, one per line")
    parser.add_argument("-c", "--checkpoint", required=True, help="--output of a training, or a file with weights")
    parser.add_argument(
        "-w", "--wav", default="spoken.wav", help="output file; for several texts spoken-1.wav and so on"
    )
    parser.add_argument("--text-cleaners", nargs="*", default=["english_cleaners"], help="(english_cleaners)")
    parser.add_argument(
        "--gate-threshold",
        type=number(at_least=0, at_most=1),
        default=0.5,
        help="probability at which a clip ends (0.5)",
    )
    parser.add_argument("--max-decoder-steps", type=integer(), default=2000, help="maximum number of frames (2000)")
    parser.add_argument(
        "--sampling-rate", type=integer(), help="(that of the training if tacotron2.pt has it, else 22050)"
    )
    parser.add_argument("--rounds", type=integer(), default=60, help="rounds of Griffin-Lim (60)")
    parser.add_argument("--seed", type=seed(), default=0, help="seed of the dropout, which is also on in inference (0)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    args = parser.parse_args()
    if not args.texts and not args.file:
        parser.error("no text: give TEXT or --file")
    return args


def load(path: Path) -> tuple[Tacotron2, AudioSettings]:
    """Return the network in a training's directory or in a file, and its audio settings."""
    file = path / "tacotron2.pt" if path.is_dir() else path
    original = read_original(file)
    try:
        model, audio = Tacotron2(sizes_of(original)), audio_of(original)
    except (TypeError, ValueError) as error:
        raise muster.UsageError(f"the config in {file} is not that of a Tacotron2: {error}") from None
    load_weights(model, original, file)
    return model.eval(), replace(audio, n_mel_channels=model.sizes.n_mel_channels)


def speak(args: argparse.Namespace) -> None:
    """Synthesize each text."""
    texts = [*args.texts, *(read_lines(Path(args.file)) if args.file else [])]
    cleaners = find_cleaners(args.text_cleaners)
    model, settings = load(Path(args.checkpoint))
    model = model.to(args.device)
    settings = replace(settings, sampling_rate=args.sampling_rate or settings.sampling_rate)
    target = Path(args.wav)
    for count, text in enumerate(texts, 1):
        numbers = symbols_of(text, cleaners)
        if not numbers:
            raise muster.UsageError(f"text {count} has no pronounceable symbols: {text!r}")
        torch.manual_seed(args.seed)
        symbols = torch.tensor([numbers], device=args.device)
        lengths = torch.tensor([len(numbers)], device=args.device)
        outputs, ends = model.infer(symbols, lengths, threshold=args.gate_threshold, most=args.max_decoder_steps)
        end = int(ends[0])
        mel = outputs.refined[0, :, :end].float()
        path = target if len(texts) == 1 else target.with_name(f"{target.stem}-{count}{target.suffix}")
        write_wav(path, griffin_lim(mel, settings, rounds=args.rounds), settings.sampling_rate)
        draw_clip(path.with_suffix(".png"), outputs.alignments[0, :end], mel)
        torch.save(mel.cpu(), path.with_suffix(".pt"))
        stopped = "" if end < args.max_decoder_steps else "; the gate did not stop it"
        print(f"{path}: {end} frames, {end * settings.hop_length / settings.sampling_rate:.1f} s{stopped}", flush=True)


if __name__ == "__main__":
    main()
