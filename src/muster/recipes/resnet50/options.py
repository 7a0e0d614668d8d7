"""Every flag of the recipe, one line each; those of the original script keep its names and defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

EPILOG = """\
examples:
  muster run -m muster.recipes.resnet50 --data data --num_epochs 30          CIFAR-10 on every GPU here
  muster run -H gpu[01-04]:8 -m muster.recipes.resnet50 --data /imagenet --num_epochs 90 --resume
  muster run --nproc 2 -m muster.recipes.resnet50 --use_syn --batch_size 8 --image_size 64
"""


def build_parser() -> argparse.ArgumentParser:
    """Every option of the recipe."""
    parser = argparse.ArgumentParser(
        prog="resnet50",
        usage="%(prog)s [options]; --help shows them",
        description="Train a ResNet on CIFAR-10, ImageNet or made-up images.",
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
    """What to train on."""
    add = parser.add_argument_group("data").add_argument
    add("--data", default="data", help="folder with cifar-10-batches-py, or with train/CLASS and val/CLASS (data)")
    add("--use_syn", action="store_true", help="made-up images, made on the device, with fresh labels for each step")
    add("--steps_syn", type=int, default=20, help="steps of an epoch of made-up images (20)")
    add("--image_size", type=int, default=224, help="of ImageNet and made-up images (224)")
    add("--batch_size", type=int, default=256, help="images per step and process; less if memory runs out (256)")
    add(
        "--cutout",
        type=int,
        default=8,
        metavar="PIXELS",
        help="side of a grey square in images of CIFAR-10; 0 for none (8)",
    )
    add("--workers", type=int, default=8, help="processes that decode ImageNet for each rank (8)")
    add("--share", help="how much of each batch every rank takes: 8,2 or measured (all the same)")


def add_model_and_step(parser: argparse.ArgumentParser) -> None:
    """The network, and how a step runs."""
    add = parser.add_argument_group("model and step").add_argument
    archs = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
    add("--arch", choices=archs, default="resnet50", help="(resnet50)")
    add("--stem", choices=("7x7", "3x3"), help="the first layers; 3x3 keeps small images large (3x3 for CIFAR-10)")
    add("--precision", choices=("float32", "tf32", "bf16"), help="(bf16 on a GPU that has it, else float32)")
    add(
        "--step",
        choices=("auto", "plain", "fused"),
        default="auto",
        help="fused: in kernels of its own, the fastest; plain: as torch does it (auto: fused where it can run)",
    )
    flag = argparse.BooleanOptionalAction
    add("--compile", action=flag, help="torch.compile for the plain step, a minute at the start (on a GPU)")
    add("--channels_last", action=flag, default=True, help="colours of a pixel side by side, as tensor cores like it")
    add("--accumulate", type=int, default=1, metavar="N", help="add up the gradients of N batches before a step (1)")


def add_learning(parser: argparse.ArgumentParser) -> None:
    """What decides over the updates."""
    add = parser.add_argument_group("learning").add_argument
    add("--num_epochs", type=int, default=100, help="(100)")
    add("--learning_rate", type=float, default=0.1, help="highest, of one process; it is scaled by their number (0.1)")
    add(
        "--scale_lr",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="multiply the rate by processes and --accumulate",
    )
    add("--schedule", choices=("cosine", "linear", "step", "constant"), default="cosine", help="(cosine)")
    add("--warmup", type=float, default=5.0, metavar="EPOCHS", help="rise to the full rate over these, at most a fifth")
    add("--optimizer", choices=("sgd", "adamw"), default="sgd", help="(sgd, with Nesterov momentum)")
    add("--momentum", type=float, default=0.9, help="of sgd (0.9)")
    add("--weight_decay", type=float, help="not on biases and normalisation (5e-4 for CIFAR-10, else 5e-5)")
    add("--label_smoothing", type=float, default=0.1, help="(0.1)")
    add("--random_seed", type=int, default=0, help="of weights, order and augmentation (0)")


def add_output(parser: argparse.ArgumentParser) -> None:
    """What is kept and shown."""
    add = parser.add_argument_group("what is kept and shown").add_argument
    add("--model_dir", help="for checkpoints and the final weights (saved_models; with --use_syn nothing is saved)")
    add("--model_filename", default="resnet_distributed.pth", help="the final weights, torchvision's names")
    add("--resume", action="store_true", help="go on from the newest complete checkpoint in --model_dir")
    add("--save_every", type=int, default=0, metavar="STEPS", help="more checkpoints than one after each epoch")
    add("--keep", type=int, default=2, help="how many checkpoints stay (2)")
    add(
        "--eval_every",
        type=int,
        default=1,
        metavar="EPOCHS",
        help="how often to evaluate; the last epoch always is (1)",
    )
    add("--log_every", type=int, default=20, metavar="STEPS", help="how often to print a line (20)")
    add("--metrics", metavar="DIR", help="write metrics.jsonl there, and for TensorBoard where it is installed")
    add("--plot", metavar="FILE", help="draw loss, rate and accuracy as an SVG")


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """The process group."""
    add = parser.add_argument_group("ranks").add_argument
    add("--backend", choices=("nccl", "gloo", "mpi"), help="(nccl with GPUs, else gloo)")
    add("--timeout", type=float, metavar="SECONDS", help="to wait for the other ranks (300)")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it by itself.
    add("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; numbers that make no sense are refused here, before anything starts."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for name in (
        "num_epochs",
        "batch_size",
        "image_size",
        "steps_syn",
        "accumulate",
        "keep",
        "eval_every",
        "log_every",
    ):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)} makes no sense: it counts from 1")
    return args
