# ranks: 1
"""A process of torch.multiprocessing.spawn fails: the parent reports its exception."""

import torch.multiprocessing as mp


def work(index):
    if index == 1:
        raise ValueError("in a spawned process")


if __name__ == "__main__":
    try:
        mp.spawn(work, nprocs=2)
    except mp.ProcessRaisedException as error:
        print(type(error).__name__, "in a spawned process" in str(error), error.error_index)
