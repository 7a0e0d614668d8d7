"""One file for each thing that can be wrong: symptom, probe, judge, fix."""

from __future__ import annotations

QUICK = (
    "access",
    "system",
    "python",
    "same_torch",
    "same_code",
    "shadow",
    "gpus",
    "gpu_users",
    "gpu_share",
    "fabric",
    "rdma",
    "master",
    "reach",
    "interface",
    "own_name",
    "names",
    "links",
    "variables",
    "launcher",
    "threads",
    "cpus",
    "limits",
    "shm",
    "disk",
    "data",
    "clock",
    "profile",
)
"""The checks that cost milliseconds, in the order in which findings of one severity are told."""
