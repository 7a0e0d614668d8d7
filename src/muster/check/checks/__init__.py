"""One file per check: symptom, judge, fix, and the probe it uses."""

from __future__ import annotations

QUICK = (
    "access",
    "pod_access",
    "system",
    "python",
    "same_torch",
    "same_code",
    "shadow",
    "earlier_jobs",
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
"""The checks that take milliseconds, in the order in which findings of one severity are printed."""

ASKED_BY_RUN = {"access", "pod_access", "earlier_jobs", "master", "reach", "own_name", "names", "launcher", "profile"}
"""Checks that `muster run` skips, because it detects the problem itself or works around it."""

BEFORE_RUN = tuple(name for name in QUICK if name not in ASKED_BY_RUN)
"""Checks that `muster run` performs while torch is imported."""
