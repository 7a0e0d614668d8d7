"""init_process_group with tcp:// and a port that rank 0 found free; nothing of the environment is left."""

import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

rank, size, out = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(os.environ["OUT"])
for name in [name for name in os.environ if name.startswith(("MASTER_", "RANK", "WORLD", "TORCHELASTIC_"))]:
    del os.environ[name]
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
print(total.item())
dist.barrier()
dist.destroy_process_group()
