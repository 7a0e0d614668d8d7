"""Backends by the names that torch takes: none, cpu:gloo, and several devices."""

import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo")
print(dist.get_backend(), dist.get_backend_config())
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
group = dist.new_group([0, 1], backend="gloo")
dist.all_reduce(total, group=group)
print(total.item(), dist.get_backend(group))
dist.barrier()
dist.destroy_process_group()
