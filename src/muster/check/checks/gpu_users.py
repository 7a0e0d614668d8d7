"""Nobody else computes on the GPUs of the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

SYMPTOM = "CUDA out of memory, at the start of a job that ran yesterday"

HIDDEN = 0.1
"""The share of a GPU's memory in use, without a process that shows, from which somebody must be there."""


def judge(cluster: Cluster) -> Iterator[Finding]:
    """A warning: there may be room for both."""
    for name, answer in cluster.answers("gpus").items():
        gpus: list[dict[str, Any]] = answer["gpus"] if answer else []
        me = cluster.answer("system", name).get("uid")
        for gpu in gpus:
            users = [process for process in answer["processes"] if process["uuid"] == gpu["uuid"]]
            for process in users:
                mine = process["uid"] == me
                used = f" with {process['used'] / 1024:.1f} GB" if process["used"] > 0 else ""
                fix = Fix(command=f"kill {process['pid']}", on=name, say="if it is not wanted any more")
                # row 49
                yield Finding(
                    severity="warning",
                    hosts=(name,),
                    what=f"GPU {gpu['index']} is in use: {process['name']} (process {process['pid']}){used}",
                    symptom=SYMPTOM,
                    fix=fix if mine else Fix(say="it is somebody else's: ask them, or choose other GPUs"),
                    row=49,
                )
            if not users and gpu["used"] > HIDDEN * gpu["memory"] > 0:
                yield Finding(
                    severity="warning",
                    hosts=(name,),
                    what=f"{gpu['used'] / 1024:.1f} GB of GPU {gpu['index']} are in use by nobody who shows",
                    symptom=SYMPTOM,
                    fix=Fix(
                        say="a process in another container, or a leak, which a reset ends",
                        command=f"{cluster.sudo(name)}nvidia-smi --gpu-reset -i {gpu['index']}",
                        on=name,
                    ),
                    row=49,
                )


CHECK = Check(judge=judge)
