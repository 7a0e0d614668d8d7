# ranks: 1
# row: 12
"""TORCH_DISTRIBUTED_DEBUG, set by the script before it imports torch, decides the debug level of torch.distributed."""

import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"


import torch.distributed as dist

print(dist.get_debug_level())
