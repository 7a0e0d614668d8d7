"""USE_LIBUV=0, set by the script before torch is imported."""

import os

os.environ["USE_LIBUV"] = "0"

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
dist.barrier()
dist.destroy_process_group()
