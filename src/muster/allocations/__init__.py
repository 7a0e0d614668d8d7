"""Allocations: which hosts a scheduler gave this job, read from what it left in the environment. Pure."""

from __future__ import annotations

from muster.allocations.allocation import Allocation
from muster.allocations.pbs import in_pbs_job, nodefile_lines, nodefile_text, read_pbs
from muster.allocations.slurm import in_slurm_allocation, read_slurm

__all__ = [
    "Allocation",
    "in_pbs_job",
    "in_slurm_allocation",
    "nodefile_lines",
    "nodefile_text",
    "read_pbs",
    "read_slurm",
]
