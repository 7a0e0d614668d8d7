"""All flags of the recipe, one line each; those of the original script keep their names and defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from muster.recipes._flag_types import integer, number, seed, timeout

EPILOG = """\
examples:
  muster run -m muster.recipes.resnet50 --data data --num_epochs 30          CIFAR-10 on every GPU here
  muster run -H gpu[01-04]:8 -m muster.recipes.resnet50 --data /imagenet --num_epochs 90 --resume
  muster run --nproc 2 -m muster.recipes.resnet50 --use_syn --batch_size 8 --image_size 64
"""


def build_parser() -> argparse.ArgumentParser:
    """All options of the recipe."""
    parser = argparse.ArgumentParser(
        prog="resnet50",
        usage="%(prog)s [options]; --help shows them",
        description="Train a ResNet on CIFAR-10, ImageNet or synthetic images.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_data(parser)
    add_model_and_step(parser)
    add_learning(parser)
    add_output(parser)
    add_ranks(parser)
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    """Options for the data."""
    add = parser.add_argument_group("data").add_argument
    add("--data", default="data", help="directory with cifar-10-batches-py, or train/CLASS and val/CLASS (data)")
    add("--use_syn", action="store_true", help="train on synthetic images, created on the device")
    add("--steps_syn", type=integer(), default=20, help="steps per epoch of synthetic images (20)")
    add("--image_size", type=integer(), default=224, help="size of ImageNet and synthetic images in pixels (224)")
    add(
        "--batch_size",
        type=integer(),
        default=256,
        help="images per step and process; reduce it if out of memory (256)",
    )
    add(
        "--cutout",
        type=integer(0),
        default=8,
        metavar="PIXELS",
        help="side of a gray square in images of CIFAR-10; 0 disables it (8)",
    )
    add("--workers", type=integer(0), default=8, help="processes per rank that decode ImageNet (8)")
    add("--share", help="share of each batch for every rank: 8,2 or measured (equal)")


def add_model_and_step(parser: argparse.ArgumentParser) -> None:
    """Options for the network and the training step."""
    add = parser.add_argument_group("model and step").add_argument
    archs = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
    add("--arch", choices=archs, default="resnet50", help="(resnet50)")
    add("--stem", choices=("7x7", "3x3"), help="first layers; 3x3 does not shrink small images (3x3 for CIFAR-10)")
    add("--precision", choices=("float32", "tf32", "bf16"), help="(bf16 on a GPU that supports it, else float32)")
    add(
        "--step",
        choices=("auto", "plain", "fused"),
        default="auto",
        help="fused: custom kernels, the fastest; plain: as torch does it (auto: fused if supported)",
    )
    flag = argparse.BooleanOptionalAction
    add("--compile", action=flag, help="torch.compile for the plain step; takes a minute at the start (on a GPU)")
    add("--channels_last", action=flag, default=True, help="channels-last memory format, preferred by tensor cores")
    add(
        "--accumulate",
        type=integer(),
        default=1,
        metavar="N",
        help="accumulate the gradients of N batches per step (1)",
    )


def add_learning(parser: argparse.ArgumentParser) -> None:
    """Options for the optimizer and the learning rate."""
    add = parser.add_argument_group("learning").add_argument
    add("--num_epochs", type=integer(), default=100, help="(100)")
    add(
        "--learning_rate",
        type=number(above=0),
        default=0.1,
        help="peak rate of one process; scaled by their number (0.1)",
    )
    add(
        "--scale_lr",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="multiply the learning rate by the number of processes and --accumulate",
    )
    add("--schedule", choices=("cosine", "linear", "step", "constant"), default="cosine", help="(cosine)")
    add(
        "--warmup",
        type=number(at_least=0),
        default=5.0,
        metavar="EPOCHS",
        help="linear warmup, at most a fifth of the run (5)",
    )
    add("--optimizer", choices=("sgd", "adamw"), default="sgd", help="(sgd, with Nesterov momentum)")
    add("--momentum", type=number(at_least=0, below=1), default=0.9, help="momentum of sgd (0.9)")
    add(
        "--weight_decay",
        type=number(at_least=0),
        help="except on biases and normalization (5e-4 for CIFAR-10, else 5e-5)",
    )
    add("--label_smoothing", type=number(at_least=0, at_most=1), default=0.1, help="(0.1)")
    add("--random_seed", type=seed(), default=0, help="seed of weights, order and augmentation (0)")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Options for files and output."""
    add = parser.add_argument_group("output").add_argument
    add("--model_dir", help="directory for checkpoints and final weights (saved_models; none with --use_syn)")
    add(
        "--model_filename", default="resnet_distributed.pth", help="file of the final weights, with torchvision's names"
    )
    add("--resume", action="store_true", help="continue from the newest complete checkpoint in --model_dir")
    add(
        "--save_every",
        type=integer(0),
        default=0,
        metavar="STEPS",
        help="also save every STEPS, not only after each epoch",
    )
    add("--keep", type=integer(), default=2, help="number of checkpoints to keep (2)")
    add(
        "--eval_every",
        type=integer(),
        default=1,
        metavar="EPOCHS",
        help="epochs between evaluations; the last epoch is always evaluated (1)",
    )
    add("--log_every", type=integer(), default=20, metavar="STEPS", help="steps per line of output (20)")
    add("--metrics", metavar="DIR", help="write metrics.jsonl and, if installed, TensorBoard logs to DIR")
    add("--plot", metavar="FILE", help="plot loss, throughput and accuracy as SVG")


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Options for the process group."""
    add = parser.add_argument_group("ranks").add_argument
    add("--backend", choices=("nccl", "gloo", "mpi"), help="(nccl with GPUs, else gloo)")
    add("--timeout", type=timeout(), metavar="SECONDS", help="how long to wait for the other ranks (300)")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    add("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    return build_parser().parse_args(argv)
