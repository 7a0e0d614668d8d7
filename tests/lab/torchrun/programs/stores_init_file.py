"""init_process_group with file://, rank and world size given."""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{os.environ['OUT']}/ready-file", rank=rank, world_size=size)
total = torch.ones(1)
dist.all_reduce(total)
print(total.item(), dist.get_rank() == rank)
dist.destroy_process_group()
