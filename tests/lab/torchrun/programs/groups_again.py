# row: 7
# torchrun: fails sometimes: the second group finds addresses of the first in the agent's store
"""Initializes, destroys, and initializes again in the same process."""

import torch
import torch.distributed as dist

for turn in range(3):
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print(turn, total.item())
    dist.barrier()
    dist.destroy_process_group()
