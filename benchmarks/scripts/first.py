"""Join the other ranks, do one all_reduce, write its time to a file, and exit."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
Path(sys.argv[1], f"first-{os.environ['RANK']}").write_text(repr(time.time()))
dist.destroy_process_group()
