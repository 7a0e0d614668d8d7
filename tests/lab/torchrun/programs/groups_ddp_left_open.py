# row: 4
# torchrun: aborts sometimes: torch 2.13 joins gloo's threads while it holds the GIL, and aborts or hangs
# stderr: not compared: torch warns now and then
"""Trains with DDP, then ends without destroy_process_group()."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    torch.manual_seed(step * 2 + dist.get_rank())
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{model.module.weight.sum().item():.4f}")
