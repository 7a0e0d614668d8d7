"""torch.distributed.checkpoint: saves a model, and loads it into another."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("gloo")
torch.manual_seed(0)
state = {"model": torch.nn.Linear(4, 4).state_dict(), "step": 7}
path = os.path.abspath("checkpoint")
dcp.save(state, checkpoint_id=path)
found = {"model": torch.nn.Linear(4, 4).state_dict(), "step": 0}
dcp.load(found, checkpoint_id=path)
print(torch.equal(found["model"]["weight"], state["model"]["weight"]), found["step"])
dist.barrier()
print(sorted(os.listdir(path)))
dist.destroy_process_group()
