"""All flags of the recipe, one line each; those of the original script keep their names and defaults."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from muster.recipes._flag_types import integer, number, seed, timeout

EPILOG = """\
examples:
  muster run -m muster.recipes.tacotron2 -d LJSpeech-1.1 -o out               LJSpeech on every GPU here
  muster run -H gpu[01-04]:8 -m muster.recipes.tacotron2 -d LJSpeech-1.1 -o out --resume
  muster run --nproc 2 -m muster.recipes.tacotron2 --use_syn --batch-size 4 --syn-scale 0.05
"""

WITHOUT_MEANING = {
    "log_file": "metrics are written to metrics.jsonl in --output",
    "dynamic_loss_scaling": "bfloat16 needs no loss scaling",
    "cudnn_enabled": "cuDNN is used if available",
    "cudnn_benchmark": "the recipe decides",
    "grad_clip": "only --grad-clip-thresh has an effect, as in the original",
    "rank": "the launcher sets it",
    "world_size": "the launcher sets it",
    "dist_url": "the launcher sets it",
    "group_name": "process groups no longer have names",
    "bench_class": "use python -m muster.recipes.tacotron2.bench",
}
"""Flags of the original that are accepted but ignored, with the reason."""

SIZES = {
    "n_mel_channels": 80,
    "n_symbols": 148,
    "symbols_embedding_dim": 512,
    "encoder_kernel_size": 5,
    "encoder_n_convolutions": 3,
    "encoder_embedding_dim": 512,
    "decoder_rnn_dim": 1024,
    "prenet_dim": 256,
    "p_attention_dropout": 0.1,
    "p_decoder_dropout": 0.1,
    "attention_rnn_dim": 1024,
    "attention_dim": 128,
    "attention_location_n_filters": 32,
    "attention_location_kernel_size": 31,
    "postnet_embedding_dim": 512,
    "postnet_kernel_size": 5,
    "postnet_n_convolutions": 5,
}
"""The sizes of the network that flags can change, as `model.ModelSizes` names them."""


def truth(text: str) -> bool:
    """Parse a flag that the original parses with `bool`, for which even "False" is true."""
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no", ""):
        return False
    raise argparse.ArgumentTypeError(f"{text} is neither true nor false")


def build_parser() -> argparse.ArgumentParser:
    """All options of the recipe."""
    parser = argparse.ArgumentParser(
        prog="tacotron2",
        usage="%(prog)s [options]; --help shows them",
        description="Train Tacotron2 on LJSpeech, a corpus in its format, or synthetic clips.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_data(parser)
    add_training(parser)
    add_audio(parser)
    add_model(parser)
    add = parser.add_argument_group("ranks").add_argument
    add("--dist-backend", "--backend", choices=("nccl", "gloo", "mpi"), help="(nccl with GPUs, else gloo)")
    add("--timeout", type=timeout(), metavar="SECONDS", help="how long to wait for the other ranks (300)")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    add("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    add = parser.add_argument_group("accepted for compatibility with the original, but ignored").add_argument
    for name, why in WITHOUT_MEANING.items():
        flag = f"--{name.replace('_', '-')}"
        if name.startswith("cudnn"):
            add(flag, action="store_true", default=None, help=why)
        else:
            add(flag, help=why)
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    """Options for the data."""
    add = parser.add_argument_group("data").add_argument
    add(
        "-d",
        "--dataset-path",
        default="./",
        metavar="DIR",
        help="directory with metadata.csv and wavs, like LJSpeech-1.1",
    )
    add("--training-files", metavar="FILE", help="list with FILE|TEXT per line, instead of metadata.csv")
    add(
        "--validation-files", metavar="FILE", help="the same for validation (with metadata.csv: up to 100 of its clips)"
    )
    add("--load-mel-from-disk", action="store_true", help="the lists contain mels (.pt), not sound")
    add("--text-cleaners", nargs="*", default=["english_cleaners"], help="(english_cleaners)")
    add("--skip-bad", action="store_true", help="skip bad clips and list them")
    add("--use_syn", action="store_true", help="train on synthetic clips with the lengths of LJSpeech")
    add("--steps_syn", type=integer(), default=20, help="steps per epoch of synthetic clips (20)")
    add(
        "--syn-scale",
        type=number(above=0),
        default=1.0,
        metavar="X",
        help="scale the length of synthetic clips by X (1.0)",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Options for training and output."""
    add = parser.add_argument_group("training").add_argument
    add("-m", "--model-name", choices=("Tacotron2",), default="Tacotron2", help="(Tacotron2)")
    add("--epochs", type=integer(), help="(1501; 3 with --use_syn)")
    add("-bs", "--batch-size", "--batch_size", type=integer(), default=64, help="clips per step and process (64)")
    add("-lr", "--learning-rate", type=number(above=0), default=1e-3, help="(1e-3)")
    add("--weight-decay", type=number(at_least=0), default=1e-6, help="(1e-6)")
    add("--grad-clip-thresh", type=number(above=0), default=1.0, help="maximum gradient norm (1.0)")
    add(
        "--anneal-steps", nargs="*", type=integer(0), metavar="EPOCH", help="epochs at which to lower the learning rate"
    )
    add(
        "--anneal-factor", type=float, choices=(0.1, 0.3), default=0.1, help="by this factor (0.1); 0.3: 1, .3, .1, .03"
    )
    add(
        "--guided-attention",
        type=integer(0),
        default=2000,
        metavar="STEPS",
        help="pull the attention to the diagonal in the first STEPS steps (2000); 0: never, as in the original",
    )
    add("--seed", type=seed(), default=1234, help="seed of weights, order and dropout (1234)")
    add("--amp", action="store_true", help="bfloat16, the default on a GPU that supports it")
    add("--precision", choices=("float32", "tf32", "bf16"), help="(bf16 on a GPU that supports it, else float32)")
    add(
        "--decoder",
        choices=("fast", "plain"),
        help="implementation of the decoder (fast on a GPU; the results are the same)",
    )
    add("--disable-uniform-initialize-bn-weight", action="store_true", help="initialize normalization weights with 1")
    add("--config-file", metavar="FILE", help="JSON with values for flags; the command line overrides it")

    add = parser.add_argument_group("output").add_argument
    add("-o", "--output", metavar="DIR", help="checkpoints, weights, plots, metrics (output; none with --use_syn)")
    add("--epochs-per-checkpoint", type=integer(), default=50, metavar="N", help="(50); the last epoch is always saved")
    add("--keep", type=integer(), default=2, help="number of checkpoints to keep (2)")
    add("--resume", "--resume-from-last", action="store_true", help="continue from the newest checkpoint in --output")
    add(
        "--checkpoint-path",
        metavar="FILE",
        help="continue from checkpoint_Tacotron2_N.pt of the original, or tacotron2.pt",
    )
    add("--use-saved-learning-rate", type=truth, default=False, help="use that of --checkpoint-path (False)")
    add("--log_every", type=integer(), default=10, metavar="STEPS", help="steps per line of output (10)")


def add_audio(parser: argparse.ArgumentParser) -> None:
    """Options for the mel spectrogram."""
    add = parser.add_argument_group("audio").add_argument
    add("--max-wav-value", type=number(above=0), default=32768.0, help="(32768)")
    for name, default in (("sampling-rate", 22050), ("filter-length", 1024), ("hop-length", 256), ("win-length", 1024)):
        add(f"--{name}", type=integer(), default=default, help=f"({default})")
    add("--mel-fmin", type=number(at_least=0), default=0.0, help="(0.0)")
    add("--mel-fmax", type=number(above=0), default=8000.0, help="(8000.0)")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Options for the network."""
    add = parser.add_argument_group("model").add_argument
    add(
        "--mask-padding",
        type=truth,
        default=False,
        help="mask what the network outputs after the end of a clip (False)",
    )
    for name, default in SIZES.items():
        kind = integer(odd="kernel" in name) if isinstance(default, int) else number(at_least=0, at_most=1)
        add(f"--{name.replace('_', '-')}", type=kind, default=default, help=f"({default})")
    add("--n-frames-per-step", type=int, choices=(1,), default=1, help="(1, as in the original)")
    add("--max-decoder-steps", type=integer(), default=2000, help="maximum number of frames in inference (2000)")
    add(
        "--gate-threshold",
        type=number(at_least=0, at_most=1),
        default=0.5,
        help="probability at which a clip ends (0.5)",
    )
    add("--decoder-no-early-stopping", action="store_true", help="always synthesize --max-decoder-steps frames")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line, and check what single flags cannot before anything starts."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.config_file:
        words = read_config(parser, Path(args.config_file))
        args = parser.parse_args([*words, *(sys.argv[1:] if argv is None else argv)])
    args.epochs = args.epochs or (3 if args.use_syn else 1501)
    if args.win_length > args.filter_length:
        parser.error(f"--win-length must be at most --filter-length {args.filter_length}, got {args.win_length}")
    if args.mel_fmin >= args.mel_fmax:
        parser.error(f"--mel-fmin must be below --mel-fmax {args.mel_fmax:g}, got {args.mel_fmin:g}")
    return args


def without_meaning(args: argparse.Namespace) -> list[str]:
    """A message for each given flag that is ignored."""
    given = [name for name in WITHOUT_MEANING if getattr(args, name) is not None]
    return [f"--{name.replace('_', '-')} is ignored: {WITHOUT_MEANING[name]}" for name in given]


def read_config(parser: argparse.ArgumentParser, path: Path) -> list[str]:
    """Read flags from JSON, flat or in groups as in NVIDIA's files, and return them as one would type them."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        parser.error(f"cannot read --config-file {path}: {error}")
    if not isinstance(content, dict):
        parser.error(f"--config-file {path} must contain a JSON object")
    flags: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", content).items():
        flags.update(cast("dict[str, Any]", value) if isinstance(value, dict) else {name: value})
    known = {action.dest: action for action in parser._actions if action.dest != "help"}
    words: list[str] = []
    for name, value in flags.items():
        action = known.get(name.lstrip("-").replace("-", "_"))
        if action is None:
            sys.stderr.write(f"muster: {path}: unknown flag {name} is ignored\n")
        elif value is not None:
            words += _as_typed(action, value)
    return words


def _as_typed(action: argparse.Action, value: Any) -> list[str]:
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return [flag] if value else []
    if isinstance(value, list):
        return [flag, *(str(one) for one in cast("list[Any]", value))]
    return [f"{flag}={value}"]
