# torchrun: not run: rank 0 takes the port for that of the agent's store, where nobody listens, and waits
"""init_process_group with tcp:// and a port that rank 0 found free: rank 0 serves the store there."""

import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

rank, size, out = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(os.environ["OUT"])
if rank == 0:
    with socket.create_server(("127.0.0.1", 0)) as found:
        (out / "ready-new").write_text(str(found.getsockname()[1]))
    (out / "ready-new").rename(out / "ready-port")
while not (out / "ready-port").exists():
    time.sleep(0.02)
address = f"tcp://127.0.0.1:{(out / 'ready-port').read_text()}"
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
dist.barrier()
dist.destroy_process_group()
