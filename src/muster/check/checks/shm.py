"""/dev/shm is large enough for data loaders and shared memory between ranks."""

from __future__ import annotations

from muster.agent.probes import files, operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.engines.table import load
from muster.text import size_text

SYMPTOM = "RuntimeError: Caught RuntimeError in DataLoader worker process 0, or: killed by signal: Bus error"

SMALL = 512 << 20
"""Bytes. Containers get 64 MB by default; a loader with four workers and image batches needs a few hundred."""

FULL = 128 << 20


def judge(cluster: Cluster) -> Findings:
    """A warning, because only some jobs use it."""
    for name, shm in cluster.answers(files.shm).items():
        size, free = size_text(shm["size"]), size_text(shm["free"])
        if shm["size"] < SMALL:
            yield Finding("warning", (name,), f"/dev/shm is only {size}", SYMPTOM, _larger(cluster, name), row=33)
        elif shm["free"] < FULL:
            fix = Fix(say="shows leftover files; remove what is not in use", command="ls -lt /dev/shm", on=name)
            yield Finding("warning", (name,), f"/dev/shm is full: {free} of {size} free", SYMPTOM, fix, row=33)


def table(answer: dict[str, int]) -> dict[str, str]:
    """Facts for the report."""
    return {"/dev/shm": size_text(answer["size"], 2)}


def _larger(cluster: Cluster, name: str) -> Fix:
    if cluster.wanted.pods:
        return Fix(say=load("kubernetes").more_shm)
    if any("--ipc" in word for word in cluster.wanted.argv):  # by default the container shares its host's /dev/shm
        return Fix(command=cluster.wanted.with_container_args("--shm-size=8g"))
    system = cluster.machine(name).answer(operating_system.system)
    memory = system["memory"] if system else 16 << 30
    size = max(1, (memory >> 30) // 2)
    return Fix(command=f"{cluster.sudo(name)}mount -o remount,size={size}g /dev/shm", on=name)


CHECK = Check(probe=files.shm, judge=judge, table=table)
