"""monitored_barrier reports the rank that did not come."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

done = Path(os.environ["OUT"]) / "ready-done"
dist.init_process_group("gloo")
dist.monitored_barrier(timeout=timedelta(seconds=20))
if dist.get_rank() == 0:
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1))
    except RuntimeError as error:
        print("Rank 1" in str(error), flush=True)
    done.touch()
while not done.exists():
    time.sleep(0.05)
os._exit(0)
