"""Every rank says hello, in rank order.

    muster run -m muster.recipes.hello                   every GPU of this machine
    muster run --nproc 2 -m muster.recipes.hello         two processes
    torchrun --nproc-per-node 2 -m muster.recipes.hello
    mpirun -np 2 python -m muster.recipes.hello
    python -m muster.recipes.hello                       a world of one

prints one line for each rank, with the address of the rendezvous:

    [http://127.0.0.1:29500] hello from [box:gloo] process 0/2
    [http://127.0.0.1:29500] hello from [box:gloo] process 1/2
"""

from __future__ import annotations

import argparse
import socket

import muster


def main() -> None:
    """Join the world, greet, leave."""
    parser = argparse.ArgumentParser(description="Every rank says hello, in rank order.", allow_abbrev=False)
    parser.add_argument("--backend", choices=("nccl", "gloo", "mpi"), help="default: nccl with GPUs, else gloo")
    # torch.distributed.launch passes it (--local_rank before torch 2.0); muster.init() reads it itself.
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        with muster.init(backend=args.backend) as world:
            say_hello(world)
    except muster.MusterError as error:
        parser.exit(error.exit_code, error.report())


def say_hello(world: muster.World) -> None:
    """Send every rank's greeting to rank 0, which prints them all."""
    import torch.distributed as dist

    host = socket.gethostname()
    greeting = f"[http://{world.address}] hello from [{host}:{world.backend}] process {world.rank}/{world.size}"
    # Barriers would order the calls of print, not the output: each rank's text goes through its own pipe, and mpirun,
    # srun and ssh forward them as they arrive. Output of a single writer is in order everywhere.
    greetings = [""] * world.size if world.rank == 0 else None
    dist.gather_object(greeting, greetings, dst=0)
    if greetings:
        print("\n".join(greetings), flush=True)


if __name__ == "__main__":
    main()
