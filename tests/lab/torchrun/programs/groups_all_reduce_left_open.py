# row: 6
# torchrun: aborts sometimes: torch 2.13 aborts when gloo's threads are destroyed with the interpreter
# stderr: not compared: torch warns now and then
"""all_reduce, then the end without destroy_process_group()."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
