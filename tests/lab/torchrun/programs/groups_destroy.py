"""init_process_group, a barrier, destroy_process_group."""

import torch.distributed as dist

dist.init_process_group("gloo")
print(dist.get_rank(), dist.get_world_size(), dist.is_initialized())
dist.barrier()
dist.destroy_process_group()
print(dist.is_initialized())
