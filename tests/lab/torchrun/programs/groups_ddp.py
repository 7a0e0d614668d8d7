"""Trains with DDP, and all ranks end with the same weights."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(10):
    torch.manual_seed(step * 2 + dist.get_rank())
    with model.join() if step == 9 else torch.enable_grad():
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{sum(p.sum() for p in model.parameters()).item():.5f}")
dist.barrier()
dist.destroy_process_group()
