"""init_process_group with tcp:// and the launcher's MASTER_ADDR and MASTER_PORT, as older scripts write it."""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()
