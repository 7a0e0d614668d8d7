# row: 2
# ranks: 3
"""Rank 0 ends, then ranks 1 and 2 make a group and use it."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

rank, pids = int(os.environ["RANK"]), Path(os.environ["OUT"]) / "ready-pid"
dist.init_process_group("gloo")
if rank == 0:
    pids.write_text(str(os.getpid()))
dist.barrier()
if rank == 0:
    print("rank 0 done", flush=True)
    os._exit(0)
while Path(f"/proc/{pids.read_text()}/fd/0").exists():
    time.sleep(0.05)
group = dist.new_group([1, 2], use_local_synchronization=True)
total = torch.full((1,), float(rank))
dist.all_reduce(total, group=group)
print(total.item(), flush=True)
os._exit(0)
