"""One file for each thing that can be wrong: symptom, judge, fix, and the probe it names."""

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

ASKED_BY_RUN = {"access", "master", "reach", "own_name", "names", "launcher", "profile"}
"""What `muster run` finds out itself while it starts, or copes with."""

BEFORE_RUN = tuple(name for name in QUICK if name not in ASKED_BY_RUN)
"""Those that it runs beside the import of torch."""
