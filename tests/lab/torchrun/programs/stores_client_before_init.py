# row: 3
"""Rank 1 connects its own client to MASTER_ADDR:MASTER_PORT before rank 0 calls init_process_group()."""

import os
import time
from datetime import timedelta

import torch.distributed as dist

rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    time.sleep(1.5)
else:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False, timeout=timedelta(seconds=20))
    store.set("mine", "from rank 1")
    print(store.get("mine"))
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
dist.barrier()
dist.destroy_process_group()
print("done")
