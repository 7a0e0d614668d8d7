"""All flags of the MNIST recipes, one line each."""

from __future__ import annotations

import argparse
from typing import Any

from muster.recipes._flag_types import integer, number, seed, timeout


def parse(recipe: str, description: str, share: str = "") -> argparse.Namespace:
    """Parse the command line of a recipe; `share` is the default of --share."""
    parser = argparse.ArgumentParser(
        prog=recipe,
        usage="%(prog)s [options]; --help shows them",
        description=description,
        epilog=f"example: muster run --nproc 2 -m muster.recipes.{recipe} --epochs 2 --model_dir runs/mnist",
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("--data", default="data/mnist", help="directory of the idx files; missing ones are downloaded")
    synthetic: dict[str, Any] = {"dest": "synthetic", "type": integer(), "nargs": "?", "const": 10_000, "metavar": "N"}
    option("--synthetic", help="train on N synthetic digits instead of files (default: 10000)", **synthetic)
    option("--made_up", "--made-up", help=argparse.SUPPRESS, **synthetic)  # the former name
    option("--epochs", type=integer(), default=3, help="number of passes over the training images (default: 3)")
    option("--batch_size", type=integer(), default=100, help="images per step and process (default: 100)")
    option("--lr", type=number(above=0), default=0.05, help="peak learning rate, times the number of processes (0.05)")
    option("--seed", type=seed(), default=0, help="seed of the initial weights and the image order (default: 0)")
    text = f"share of each batch for every rank: 8,2 or measured (default: {share or 'equal'})"
    option("--share", default=share, help=text)
    option("--backend", choices=("nccl", "gloo", "mpi"), help="default: nccl with GPUs, else gloo")
    # Output.
    option("--model_dir", help="save checkpoints to this directory (default: save none)")
    option("--save_every", type=integer(0), default=200, metavar="N", help="steps per checkpoint (200); and at the end")
    option("--keep", type=integer(), default=2, help="number of checkpoints to keep (default: 2)")
    option("--resume", action="store_true", help="continue from the newest complete checkpoint in --model_dir")
    option("--log_every", type=integer(), default=100, metavar="STEPS", help="steps per line of output (default: 100)")
    option("--metrics", metavar="DIR", help="write metrics.jsonl and, if installed, TensorBoard logs to DIR")
    option("--plot", metavar="FILE", help="plot loss and throughput as SVG")
    # Without a launcher, this process starts the ranks of its node itself.
    option("-n", "--nodes", type=integer(), help="number of nodes, each started by hand")
    option("-g", "--gpus", help="processes on each node: 8, or 8,2 if they differ")
    option("-i", "--id", type=integer(0), default=0, help="index of this node, from 0")
    option("--master-addr", help="address of node 0 (default: MASTER_ADDR)")
    option("--master-port", type=integer(1, 65535), help="a free port there (default: MASTER_PORT or 29500)")
    option("--timeout", type=timeout(), help="seconds to wait for the other ranks (default: 300)")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    option("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()
