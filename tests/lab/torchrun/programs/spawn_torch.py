# ranks: 1
"""torch.multiprocessing.spawn."""

import os

import torch
import torch.multiprocessing as mp


def work(index, tensor):
    tensor[index] = index + 1
    assert os.environ["RANK"] == "0"


if __name__ == "__main__":
    shared = torch.zeros(2).share_memory_()
    mp.spawn(work, args=(shared,), nprocs=1)
    print(shared.tolist())
