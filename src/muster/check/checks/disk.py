"""There is free space where a job writes: the working directory, the home directory and /tmp."""

from __future__ import annotations

from muster.agent.probes import files
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.text import size_text

SYMPTOM = "RuntimeError: [enforce fail at inline_container.cc] . unexpected pos (that is: no space left on device)"
SILENT = "ranks hang while they start, or in their first read"

LEAST = 100 << 20
FEWEST_FILES = 1000


def judge(cluster: Cluster) -> Findings:
    """Also report a disk that is mounted read-only, as the kernel does after an I/O error."""
    for name, places in cluster.answers(files.disk).items():
        for path, room in places.items():
            if room["free"] < LEAST:
                what = f"{path} is full: {room['free'] >> 20} MB of {size_text(room['size'])} free"
            elif 0 <= room["files"] < FEWEST_FILES:
                what = f"{path} has only {room['files']} free inodes"
            elif room["read_only"] and path != cluster.wanted.cwd:  # code is often mounted read-only
                what = f"{path} is read-only"
            else:
                continue
            yield Finding("warning", (name,), what, SYMPTOM, _fix(cluster, name, path, what), row=51)
    for machine in cluster.machines:
        if "disk" in machine.hung:
            what = "a file system does not respond: that of the working directory, the home directory or /tmp"
            fix = Fix(command="mount | grep -e nfs -e lustre -e fuse", on=machine.name, say="usually one of these")
            yield Finding("warning", (machine.name,), what, SILENT, fix, row=52)


def _fix(cluster: Cluster, name: str, path: str, what: str) -> Fix:
    if what.endswith("read-only"):
        if cluster.wanted.pods:
            return Fix(say=f"if the script writes there, mount an emptyDir or another volume at {path} of the pod")
        return Fix(say="the kernel does this after an I/O error, which `dmesg` shows", command="dmesg | tail", on=name)
    command = f"du -xh {path} | sort -h | tail"
    return Fix(say="shows what uses the space; remove what is not needed", command=command, on=name)


CHECK = Check(probe=files.disk, judge=judge)
