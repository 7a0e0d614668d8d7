# row: 2
"""Rank 1 connects to the store after rank 0 has ended."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

rank, pids = int(os.environ["RANK"]), Path(os.environ["OUT"]) / "ready-pid"
dist.init_process_group("gloo")
if rank == 0:
    pids.write_text(str(os.getpid()))
dist.barrier()
if rank == 1:
    while Path(f"/proc/{pids.read_text()}/fd/0").exists():
        time.sleep(0.05)
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False, timeout=timedelta(seconds=20))
    store.set("late", "client")
    print(store.get("late"))
print("done", flush=True)
os._exit(0)
