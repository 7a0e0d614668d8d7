"""CPU threads of a rank."""

from __future__ import annotations

import os

import torch

import muster


def divide_cpus(world: muster.World) -> None:
    """Give each rank of a host its part of the CPUs, if it computes on them and OMP_NUM_THREADS is not set."""
    if world.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.local_size))
