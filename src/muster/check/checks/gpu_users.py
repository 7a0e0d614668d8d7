"""No other process uses the GPUs of the job."""

from __future__ import annotations

from muster.agent.probes import nvidia, operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "CUDA out of memory at the start of a job that used to run"

HIDDEN = 0.1
"""Fraction of a GPU's memory in use, without a visible process, above which it is reported."""


def judge(cluster: Cluster) -> Findings:
    """A warning, because there may be enough memory for both."""
    for name, answer in cluster.answers(nvidia.gpus).items():
        system = cluster.machine(name).answer(operating_system.system)
        processes = answer["processes"] if answer else []
        for gpu in cluster.gpus(name):
            number = gpu["index"]
            users = [process for process in processes if process["uuid"] == gpu["uuid"]]
            for process in users:
                used = f" with {process['used'] / 1024:.1f} GB" if process["used"] > 0 else ""
                what = f"GPU {number} is in use: {process['name']} (process {process['pid']}){used}"
                fix = Fix(say="the process belongs to another user: ask them, or choose other GPUs")
                if system and process["uid"] == system["uid"]:
                    fix = Fix(command=f"kill {process['pid']}", on=name, say="if it is no longer needed")
                yield Finding("warning", (name,), what, SYMPTOM, fix, row=49)
            if not users and gpu["used"] > HIDDEN * gpu["memory"] > 0:
                what = f"{gpu['used'] / 1024:.1f} GB of GPU {number} is in use, but no visible process owns it"
                why = "it is held by a process in another container, or leaked, which a reset fixes"
                fix = Fix(say=why, command=f"{cluster.sudo(name)}nvidia-smi --gpu-reset -i {number}", on=name)
                yield Finding("warning", (name,), what, SYMPTOM, fix, row=49)


CHECK = Check(judge=judge)
