"""DistributedSampler gives each rank its half."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
data = TensorDataset(torch.arange(10))
sampler = DistributedSampler(data, seed=4)
loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    print([batch[0].tolist() for batch in loader])
dist.barrier()
dist.destroy_process_group()
