"""There is room where a job writes: its folder, the home folder, and /tmp."""

from __future__ import annotations

from muster.agent.probes import files
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.text import size_text

SYMPTOM = "RuntimeError: [enforce fail at inline_container.cc] . unexpected pos, which means: no space left"
SILENT = "ranks that hang while they start, or in their first read"

LEAST = 100 << 20
FEWEST_FILES = 1000


def judge(cluster: Cluster) -> Findings:
    """Also a disk that is mounted read-only, as after an error of its own."""
    for name, places in cluster.answers(files.disk).items():
        for path, room in places.items():
            if room["free"] < LEAST:
                what = f"{path} is full: {room['free'] >> 20} MB are left of {size_text(room['size'])}"
            elif 0 <= room["files"] < FEWEST_FILES:
                what = f"{path} has room for {room['files']} more files only"
            elif room["read_only"] and path != cluster.wanted.cwd:  # code may well be mounted so
                what = f"{path} can only be read"
            else:
                continue
            command = f"du -xh {path} | sort -h | tail"
            fix = Fix(say="see what takes the room, and remove it", command=command, on=name)
            yield Finding("warning", (name,), what, SYMPTOM, fix, row=51)
    for machine in cluster.machines:
        if "disk" in machine.hung:
            what = "a file system there does not answer: the working folder, the home folder or /tmp"
            fix = Fix(command="mount | grep -e nfs -e lustre -e fuse", on=machine.name, say="one of these, mostly")
            yield Finding("warning", (machine.name,), what, SILENT, fix, row=52)


CHECK = Check(probe=files.disk, judge=judge)
