"""Train a small network with DistributedDataParallel (DDP), in plain PyTorch.

    muster run -m muster.recipes.ddp                               every GPU of this machine
    muster run -H gpu[01-04]:8,box:2 -m muster.recipes.ddp
    torchrun --nproc-per-node 2 -m muster.recipes.ddp
    muster run --engine mpi -H h1:2,h2:2 -m muster.recipes.ddp     through mpirun on two hosts
    python -m muster.recipes.ddp                                   one process

The numbers 1 to 4 mark what a script for one GPU does not have.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
if torch.cuda.is_available():  # 1. a GPU for each rank of this host, and the process group
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
else:
    device = torch.device("cpu")
# Launchers set RANK, WORLD_SIZE and MASTER_ADDR; `python ddp.py` is a single rank.
alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **alone)
x = torch.randn(4096, 16)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)  # 2. each rank takes its own part of the data
loader = DataLoader(data, batch_size=64, sampler=sampler)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
model = DistributedDataParallel(model)  # 3. gradients are averaged over all ranks
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for epoch in range(3):
    sampler.set_epoch(epoch)  # another order in each epoch, the same in all ranks
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:  # 4. one rank prints and saves
        print(f"epoch {epoch}: loss {loss.item():.3f}")
        torch.save(model.module.state_dict(), "model.pt")

dist.destroy_process_group()
