# ranks: 4
"""A device mesh of two dimensions, and a DTensor on it."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
print(mesh.get_local_rank("dp"), mesh.get_local_rank("tp"), mesh["tp"].size())
sharded = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh["tp"], [Shard(0)])
print(sharded.to_local().tolist(), sharded.full_tensor().sum().item())
dist.barrier()
dist.destroy_process_group()
