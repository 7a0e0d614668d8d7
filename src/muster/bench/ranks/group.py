"""The ranks of a benchmark: their process groups, reporting by rank 0, and exchanging values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

dist: Any = torch.distributed
"""Untyped, because torch annotates it only partially."""

COLLECTIVE_LIMIT = 600.0
"""Timeout of a collective in seconds: enough for 1 GB at 15 Mbit/s."""


class Group:
    """Two process groups: gloo for coordination, and the one that is measured, which may be the same."""

    def __init__(self, backend: str, marker: str) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        self.host = int(os.environ["GROUP_RANK"])
        """The position of this rank's host in the plan."""
        self._marker = marker
        limit = timedelta(seconds=COLLECTIVE_LIMIT)
        dist.init_process_group("gloo", timeout=limit)
        has_gpu = torch.cuda.is_available() and torch.cuda.device_count() > self.local_rank
        without = [rank for rank, has in enumerate(self.gather(has_gpu)) if not has]
        if backend == "nccl" and without:
            raise SystemExit(f"nccl needs a GPU for each rank, but rank {without[0]} has none; use --backend gloo")
        self.backend = backend or ("gloo" if without or not dist.is_nccl_available() else "nccl")
        self.device = torch.device("cpu")
        self.measured: Any = dist.group.WORLD
        if self.backend == "nccl":
            self.device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(self.device)
            self.measured = dist.new_group(backend="nccl", timeout=limit)

    def close(self) -> None:
        """Exit together, because rank 0 owns the store and NCCL's watchdogs still use it."""
        if self.backend == "nccl":
            dist.destroy_process_group(self.measured)
        self.barrier()
        dist.destroy_process_group()

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a record to the controller; only rank 0 does."""
        if self.rank == 0:
            print(self._marker + json.dumps({"t": kind, **fields}), flush=True)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order, on every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def slowest(self, seconds: list[float]) -> list[float]:
        """The maximum over all ranks, for each position."""
        times = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return [float(each) for each in times]

    def settle(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def zeros(self, count: int) -> torch.Tensor:
        """A buffer on the device of the measured backend; zeroed, because denormal numbers are slow to add."""
        return torch.zeros(count, dtype=torch.float32, device=self.device)


Call = Callable[[], object]
