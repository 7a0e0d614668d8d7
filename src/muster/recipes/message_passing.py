"""Rank 0 sends a tensor to each other rank, and each checks what it received.

    muster run -m muster.recipes.message_passing                 every GPU of this machine
    muster run -H gpu[01-04]:8,box:2 -m muster.recipes.message_passing
    torchrun --nproc-per-node 2 -m muster.recipes.message_passing
    mpirun -np 2 python -m muster.recipes.message_passing
    python -m muster.recipes.message_passing                     a world of one: no messages

prints, in the order in which it happens:

    Rank 0 sent data to Rank 1
    Rank 1 has received data from rank 0
"""

from __future__ import annotations

import argparse
import sys

import muster


def main() -> None:
    """Join the world, pass the messages, and leave."""
    parser = argparse.ArgumentParser(
        description="Rank 0 sends a tensor to each other rank, and each checks what it received.",
        allow_abbrev=False,
    )
    parser.add_argument("--backend", choices=("nccl", "gloo", "mpi"), help="default: nccl with GPUs, else gloo")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        with muster.init(backend=args.backend) as world:
            pass_messages(world)
    except muster.MusterError as error:
        parser.exit(error.exit_code, error.report())


def pass_messages(world: muster.World) -> None:
    """Send from rank 0, receive everywhere else."""
    import torch
    import torch.distributed as dist

    device = world.device if world.backend == "nccl" else torch.device("cpu")  # gloo sends only from the CPU
    message = torch.arange(4, device=device)
    if world.rank == 0:
        for receiver in range(1, world.size):
            dist.send(message + 10 * receiver, dst=receiver)
            say(f"Rank 0 sent data to Rank {receiver}")
    else:
        received = torch.zeros_like(message)
        dist.recv(received, src=0)
        if not torch.equal(received, message + 10 * world.rank):
            sys.exit(f"error: rank {world.rank} received {received}, which is not what rank 0 sent")
        say(f"Rank {world.rank} has received data from rank 0")


def say(line: str) -> None:
    """Print a line with one write: with torchrun's `python -u`, print() makes two, and lines of ranks get mixed."""
    print(line + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
