"""A job that fails in the given way on the given rank; torch is imported only if it is needed."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import signal
import sys
import time

MODE, CULPRIT = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
MINE = RANK == CULPRIT


def wait_for_all(name: str = "up") -> None:
    """Wait until all ranks are here, using the shared directory."""
    open(f"{name}-{RANK}", "w").close()
    while not all(os.path.exists(f"{name}-{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.02)


def without_torch() -> None:
    """Failures without torch."""
    wait_for_all()
    if not MINE:
        time.sleep(60)
    if MODE == "value":
        raise ValueError("bad sample in shard 7")
    if MODE == "memory":
        held: list[bytearray] = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)))
    if MODE == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "write":
        with open("/ckpt/state.bin", "wb") as file:
            file.write(bytes(8_000_000))
    if MODE == "data":
        open("/data/set/train.bin", "rb").close()
    if MODE == "wait":
        time.sleep(60)


def with_torch() -> None:
    """Failures of collectives."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    dist.all_reduce(torch.ones(1))
    if MODE in ("calls", "shapes", "silent", "dtypes", "uneven"):
        with_another_call()
    else:
        with_a_rank_that_leaves()


def with_another_call() -> None:
    """One rank calls a different collective, with a different tensor, or fewer collectives."""
    import torch
    import torch.distributed as dist

    if MODE == "calls":
        dist.barrier() if MINE else dist.all_reduce(torch.ones(1000))
    if MODE == "shapes":
        dist.all_reduce(torch.ones(1000 if MINE else 4000))
    if MODE == "silent":
        dist.all_reduce(torch.ones(2 if MINE else 4))  # returns on the rank with the smaller tensor, with a wrong sum
    if MODE == "dtypes":
        dist.all_reduce(torch.ones(3, dtype=torch.float32 if MINE else torch.float64))
    if MODE == "uneven":
        for _ in range(5 if MINE else 8):
            dist.all_reduce(torch.ones(1))


def with_a_rank_that_leaves() -> None:
    """One rank ends while the others call a collective."""
    import torch
    import torch.distributed as dist

    one = torch.ones(1)
    if MODE == "exit":
        if MINE:
            sys.exit(0)
        dist.all_reduce(one)
    if MODE == "_exit":
        if MINE:
            os._exit(0)
        dist.all_reduce(one)
    if MODE == "store" and not MINE:
        time.sleep(1)
        dist.new_group(list(range(dist.get_world_size())))
    if MODE == "raise":
        if MINE:
            raise ValueError("bad sample in shard 7")
        dist.all_reduce(one)
    if MODE == "slow_raise":
        if MINE:
            try:
                raise ValueError("bad sample in shard 7")
            finally:
                dist.destroy_process_group()
                time.sleep(1.5)  # as long as an experiment tracker takes to finish
        dist.all_reduce(one)
    if MODE == "save":
        if MINE:
            torch.save({"weights": torch.rand(2_000_000)}, "/ckpt/step-7.pt")
        dist.barrier()


def with_loader() -> None:
    """Failures of DataLoader workers."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            if MODE == "sample" and index == 5:
                raise ValueError("bad sample 5")
            held: list[bytearray] = []
            while MODE == "worker_memory":
                held.append(bytearray(os.urandom(1 << 20)))
            return torch.ones(1_000_000 if MODE == "shm" else 10)

    wait_for_all()
    if MINE:
        for _ in DataLoader(Images(), batch_size=8, num_workers=1):
            time.sleep(0.1)
    time.sleep(60)


if MODE in ("value", "memory", "kill", "write", "data", "wait"):
    without_torch()
elif MODE in ("shm", "sample", "worker_memory"):
    with_loader()
else:
    with_torch()
