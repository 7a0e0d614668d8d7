"""Objects of the script's own classes travel between ranks."""

from dataclasses import dataclass

import torch.distributed as dist


@dataclass
class Result:
    rank: int
    name: str


dist.init_process_group("gloo")
found = [None] * dist.get_world_size()
dist.all_gather_object(found, Result(dist.get_rank(), "x"))
print(found)
sent = [Result(7, "from rank 0") if dist.get_rank() == 0 else None]
dist.broadcast_object_list(sent)
print(sent)
dist.barrier()
dist.destroy_process_group()
