# row: 2
"""Rank 0 ends, then rank 1 uses the default store."""

import os
import time
from pathlib import Path

import torch.distributed as dist

rank, pids = int(os.environ["RANK"]), Path(os.environ["OUT"]) / "ready-pid"
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.set("word", "of rank 0")
    pids.write_text(str(os.getpid()))
dist.barrier()
if rank == 1:
    while Path(f"/proc/{pids.read_text()}/fd/0").exists():
        time.sleep(0.05)
    store.set("late", "yes")
    print(store.get("word"), store.get("late"))
print("done", flush=True)
os._exit(0)
