"""monitored_barrier names the rank that did not come."""

from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
dist.monitored_barrier(timeout=timedelta(seconds=20))
if dist.get_rank() == 0:
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1))
    except RuntimeError as error:
        print("rank 1" in str(error).lower() or str(error)[:200])
dist.barrier()
print("done")
dist.destroy_process_group()
