"""torch.distributed.checkpoint.async_save, whose result is awaited at the end."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("cpu:gloo")
state = {"weight": torch.arange(4.0)}
future = dcp.async_save(state, checkpoint_id=os.path.abspath("checkpoint"))
future.result()
dist.barrier()
found = {"weight": torch.zeros(4)}
dcp.load(found, checkpoint_id=os.path.abspath("checkpoint"))
print(found["weight"].tolist())
dist.barrier()
dist.destroy_process_group()
