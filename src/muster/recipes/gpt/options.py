"""All flags of the recipe, one line each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from muster.recipes._flag_types import integer, number, seed, timeout

SIZES = {  # layers, heads, width, context
    "tiny": (4, 4, 128, 128),
    "small": (6, 6, 384, 256),
    "gpt2": (12, 12, 768, 1024),
    "gpt2-medium": (24, 16, 1024, 1024),
    "gpt2-xl": (48, 25, 1600, 1024),
}

EPILOG = """\
examples:
  muster run -m muster.recipes.gpt --data input.txt --out runs/gpt       a small model on every GPU here
  muster run -H gpu[01-04]:8 -m muster.recipes.gpt --data big.txt --bpe 2048 --size gpt2 --strategy hsdp
"""


def build_parser() -> argparse.ArgumentParser:
    """All options of the recipe."""
    kind, usage = argparse.RawDescriptionHelpFormatter, "%(prog)s [options]; --help shows them"
    parser = argparse.ArgumentParser("gpt", usage, "Train a GPT.", EPILOG, formatter_class=kind, allow_abbrev=False)
    add = parser.add_argument_group("data").add_argument
    add("--data", metavar="FILE", help="text, on the host of rank 0; its last tenth validates (Python's help topics)")
    add("--bpe", type=integer(257, 4096), default=0, metavar="N", help="tokens of a BPE trained on the text (bytes)")
    add = parser.add_argument_group("model").add_argument
    add("--size", choices=tuple(SIZES), default="small", help="layers, heads, width and context (small)")
    for name in ("--layers", "--heads", "--width"):
        add(name, type=integer(), help="instead of --size's")
    add("--context", type=integer(2), help="the longest sequence, instead of --size's")
    add = parser.add_argument_group("step").add_argument
    add("--batch", type=integer(), default=64, help="sequences per step of all ranks together (64)")
    add("--micro_batch", type=integer(), metavar="N", help="sequences at a time in a rank; needs less memory (all)")
    add("--precision", choices=("float32", "bf16"), help="(bf16 on a GPU that supports it, else float32)")
    add("--compile", action=argparse.BooleanOptionalAction, help="torch.compile; a slow start, then fast (on a GPU)")
    add("--recompute", choices=("none", "cheap", "all"), default="cheap", help="activations to recompute (cheap)")
    add("--strategy", choices=("ddp", "fsdp", "hsdp"), default="ddp", help="what ranks share; may change (ddp)")
    add("--shard_ranks", type=integer(), metavar="N", help="ranks that share a model with hsdp (those of a host)")
    add = parser.add_argument_group("learning").add_argument
    add("--epochs", type=integer(), default=10, help="(10)")
    add("--optimizer", choices=("adamw", "muon"), default="adamw", help="muon for matrices, adamw for the rest (adamw)")
    add("--lr", type=number(above=0), default=1e-3, help="peak learning rate (0.001; 0.0006 suits gpt2)")
    add("--warmup", type=number(at_least=0, below=1), default=0.05, help="linear, as a part of the run (0.05)")
    add("--weight_decay", type=number(at_least=0), default=0.1, help="on matrices (0.1)")
    add("--clip", type=number(at_least=0), default=1.0, help="largest norm of the gradient; 0 allows any (1)")
    add("--seed", type=seed(), default=0, help="seed of initial weights and batches (0)")
    add = parser.add_argument_group("output").add_argument
    add("--out", metavar="DIR", help="directory for checkpoints and metrics, shared by all hosts (save nothing)")
    add("--resume", action="store_true", help="continue from the newest checkpoint in --out, if there is one")
    add("--save_every", type=integer(), default=500, metavar="STEPS", help="(500); and at the end")
    add("--keep", type=integer(), default=2, help="number of checkpoints to keep (2)")
    add("--eval_every", type=integer(), default=250, metavar="STEPS", help="steps per validation (250); and at the end")
    add("--plot", metavar="FILE", help="plot losses and throughput as SVG")
    add("--log_every", type=integer(), default=10, metavar="STEPS", help="steps per line of output (10)")
    add = parser.add_argument_group("ranks").add_argument
    add("--backend", choices=("nccl", "gloo"), help="(nccl with GPUs, else gloo)")
    add("--timeout", type=timeout(), metavar="SECONDS", help="how long to wait for the other ranks (300)")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    add("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; what --size implies is filled in."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for name, value in zip(("layers", "heads", "width", "context"), SIZES[args.size], strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.width % args.heads:
        parser.error(f"--width must be a multiple of --heads, got {args.width} and {args.heads}")
    if args.resume and not args.out:
        parser.error("--resume needs --out, the directory to continue from")
    return args
