# args: --batch-size 32
"""A script as tutorials write it: argparse, LOCAL_RANK, a device, a group."""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
options = parser.parse_args()
device = torch.device("cuda", options.local_rank) if torch.cuda.is_available() else torch.device("cpu")
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
print(options, device, dist.get_rank(), parser.prog)
if dist.get_rank() == 0:
    with open(f"{os.environ['OUT']}/result", "w") as file:
        file.write("saved by rank 0")
dist.barrier()
dist.destroy_process_group()
