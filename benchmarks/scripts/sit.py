"""Do one all_reduce, then wait until the file `go` appears: it is empty (exit), or has the rank that must fail.

All ranks hold the FIFO `alive` open, so its reader knows exactly when the last of them is gone.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SIT_LIMIT = 300.0

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
alive = os.open(folder / "alive", os.O_WRONLY)
os.write(alive, b".")
(folder / f"pid-{rank}").write_text(str(os.getpid()))
go, deadline = folder / "go", time.monotonic() + SIT_LIMIT
while not go.exists():
    if time.monotonic() > deadline:
        sys.exit(f"the file `go` did not appear within {SIT_LIMIT:.0f} s")
    time.sleep(0.02)
if failing := go.read_text():
    if failing == rank:
        (folder / "failed").write_text(repr(time.time()))
        raise RuntimeError("this rank fails on request")
    time.sleep(SIT_LIMIT)
dist.destroy_process_group()
