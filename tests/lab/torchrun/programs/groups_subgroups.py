# ranks: 4
"""Groups of halves and of pairs, made by all ranks."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = halves[rank // 2]
total = torch.tensor([float(rank)])
dist.all_reduce(total, group=mine)
print(total.item(), dist.get_rank(mine), dist.get_process_group_ranks(mine))
pairs, _ = dist.new_subgroups(2)
total = torch.ones(1)
dist.all_reduce(total, group=pairs)
print(total.item())
dist.barrier()
dist.destroy_process_group()
