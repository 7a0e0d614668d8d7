# ranks: 1
"""A process group of spawned processes below one rank, with an address of their own."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(index, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=index, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    assert total.item() == 2


if __name__ == "__main__":
    mp.spawn(work, args=(f"{os.environ['OUT']}/ready-file",), nprocs=2)
    print("done")
