"""Train a small model with DDP and write down when the first optimizer step was done."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,))).backward()
    optimiser.step()
    if step == 0:
        Path(sys.argv[1], f"first-{os.environ['RANK']}").write_text(repr(time.time()))
dist.barrier()  # without it, a rank that exits early makes gloo abort on another rank
dist.destroy_process_group()
