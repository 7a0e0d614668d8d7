"""One rank fails after the first all_reduce of the first attempt; each attempt records the time of its first one."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder, rank, attempt = Path(sys.argv[1]), os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
(folder / f"attempt-{attempt}-{rank}").write_text(repr(time.time()))
if attempt == "0":
    dist.barrier()
    if int(rank) == dist.get_world_size() - 1:
        (folder / "failed").write_text(repr(time.time()))
        raise RuntimeError("this rank fails once")
    dist.all_reduce(torch.ones(1))  # waits for the rank that failed
dist.destroy_process_group()
