"""init_rpc, calls in both directions, a remote reference, shutdown."""

import os

import torch
import torch.distributed.rpc as rpc

rank = int(os.environ["RANK"])


def add(a, b):
    return a + b + rank


if __name__ == "__main__":
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    other = f"worker{1 - rank}"
    print(rpc.rpc_sync(other, add, args=(torch.ones(2), 1)).tolist())
    print(rpc.rpc_async(other, add, args=(1, 2)).wait(), rpc.remote(other, add, args=(3, 4)).to_here())
    rpc.shutdown()
    print("done")
