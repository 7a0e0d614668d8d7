"""A model with a different shape on one rank; not in script.py, because Muster prepares scripts that mention DDP."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
DistributedDataParallel(torch.nn.Linear(4, 5 if dist.get_rank() == int(sys.argv[2]) else 3))
time.sleep(60)
