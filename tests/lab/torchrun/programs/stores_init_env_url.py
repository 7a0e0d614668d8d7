"""init_process_group with env:// and a store of the script's own beside it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="env://")
total = torch.ones(1)
dist.all_reduce(total)
print(total.item(), dist.get_world_size(), dist.get_backend())
store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
store.set(str(dist.get_rank()), "here")
print([store.get(str(other)) for other in range(2)])
dist.barrier()
dist.destroy_process_group()
