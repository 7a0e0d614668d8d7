# row: 1
# ranks: 4
# runs: 200
"""The first program everybody writes."""

import torch.distributed as dist

dist.init_process_group("gloo")
print(dist.get_rank())
