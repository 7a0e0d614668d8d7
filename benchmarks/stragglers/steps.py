"""A training loop of about four steps a second whose work is mostly sleep, so that two CPUs carry four ranks of it.

What may slow a rank down comes from outside, by its process id; only what a script itself may do (a longer sleep, an
evaluation on rank 0) is asked for on the command line.
"""

# torch is typed in part only.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEP = 0.2
COMPUTE = 0.03
CHUNK = 1 << 18


def compute(seconds: float) -> None:
    """Use so much CPU time, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def read(path: Path) -> None:
    """Read a piece of a file from the disk itself, past what the kernel keeps of it."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.read(CHUNK)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where ranks leave their process ids, and find what to do")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jitter", type=float, default=0.0, help="how much the sleep of every rank varies")
    parser.add_argument("--uneven", type=float, default=0.0, help="how much longer rank 0 works at every step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that rank 0 takes for itself now and then")
    parser.add_argument("--every", type=int, default=15, help="steps between such pauses")
    parser.add_argument("--width", type=int, default=32, help="of the layers: how much is sent at every step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(rank)
    data = options.folder / f"data-{rank}"
    data.write_bytes(os.urandom(CHUNK))
    os.sync()
    (options.folder / f"pid-{rank}").write_text(str(os.getpid()))
    layers = torch.nn.Sequential(*(torch.nn.Linear(options.width, options.width) for _ in range(4)))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=options.width**2 * 8 / 2**20)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    batch = torch.randn(4, options.width)
    more = options.folder / f"sleep-{rank}"
    for step in range(options.steps):
        optimiser.zero_grad()
        read(data)
        compute(COMPUTE)
        longer = float(more.read_text() or 0) if more.exists() else 0.0
        time.sleep(STEP * (1 + longer + random.uniform(0, options.jitter) + (options.uneven if rank == 0 else 0.0)))
        model(batch).sum().backward()
        optimiser.step()
        if rank == 0:
            if options.pause and step % options.every == options.every - 1:
                time.sleep(options.pause)
            print("step", step, flush=True)
    sys.stdout.flush()


main()
