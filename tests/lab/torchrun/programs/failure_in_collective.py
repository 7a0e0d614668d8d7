# exit: 11
# stderr: not compared: of rank 0, whose connection may break before the launcher stops it
"""Rank 1 fails while rank 0 waits for it in a collective: rank 1 is the one to blame."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    os._exit(11)
dist.all_reduce(torch.ones(1))
