"""init_process_group() without a backend."""

import torch
import torch.distributed as dist

dist.init_process_group()
print(dist.get_backend(), dist.get_backend_config())
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
dist.barrier()
dist.destroy_process_group()
