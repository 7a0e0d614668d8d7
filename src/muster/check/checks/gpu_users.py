"""Nobody else computes on the GPUs of the job."""

from __future__ import annotations

from muster.agent.probes import nvidia, operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "CUDA out of memory, at the start of a job that ran yesterday"

HIDDEN = 0.1
"""The share of a GPU's memory in use, without a process that shows, from which somebody must be there."""


def judge(cluster: Cluster) -> Findings:
    """A warning: there may be room for both."""
    for name, answer in cluster.answers(nvidia.gpus).items():
        system = cluster.machine(name).answer(operating_system.system)
        processes = answer["processes"] if answer else []
        for gpu in cluster.gpus(name):
            number = gpu["index"]
            users = [process for process in processes if process["uuid"] == gpu["uuid"]]
            for process in users:
                used = f" with {process['used'] / 1024:.1f} GB" if process["used"] > 0 else ""
                what = f"GPU {number} is in use: {process['name']} (process {process['pid']}){used}"
                fix = Fix(say="it is somebody else's: ask them, or choose other GPUs")
                if system and process["uid"] == system["uid"]:
                    fix = Fix(command=f"kill {process['pid']}", on=name, say="if it is not wanted any more")
                yield Finding("warning", (name,), what, SYMPTOM, fix, row=49)
            if not users and gpu["used"] > HIDDEN * gpu["memory"] > 0:
                what = f"{gpu['used'] / 1024:.1f} GB of GPU {number} are in use by nobody who shows"
                why = "a process in another container, or a leak, which a reset ends"
                fix = Fix(say=why, command=f"{cluster.sudo(name)}nvidia-smi --gpu-reset -i {number}", on=name)
                yield Finding("warning", (name,), what, SYMPTOM, fix, row=49)


CHECK = Check(judge=judge)
