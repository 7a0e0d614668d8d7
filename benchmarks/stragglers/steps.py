"""A training loop of about four steps per second that mostly sleeps, so that two CPUs suffice for four ranks.

Ranks are slowed down from outside, by process id; the command line controls only what a script itself may do (a longer
sleep, an evaluation on rank 0).
"""

# torch is only partially typed.
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
    """Use this much CPU time, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def read(path: Path) -> None:
    """Read part of a file from disk, bypassing the page cache."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.read(CHUNK)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="directory where ranks write their process ids and find what to do")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jitter", type=float, default=0.0, help="relative variation of the sleep of every rank")
    parser.add_argument("--uneven", type=float, default=0.0, help="relative extra work of rank 0 at every step")
    parser.add_argument("--pause", type=float, default=0.0, help="duration of rank 0's pauses in seconds")
    parser.add_argument("--every", type=int, default=15, help="steps between such pauses")
    parser.add_argument("--width", type=int, default=32, help="width of the layers, which determines the data sent")
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
