"""There is room where a job writes: its folder, the home folder, and /tmp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix
from muster.text import size_text

SYMPTOM = "RuntimeError: [enforce fail at inline_container.cc] . unexpected pos, which means: no space left"

LEAST = 100 << 20
FEWEST_FILES = 1000


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: each file system once, under the first of its names."""
    import os

    found: dict[str, Any] = {}
    seen: set[int] = set()
    for path in (ask["cwd"], os.path.expanduser("~"), os.environ.get("TMPDIR", "/tmp")):
        try:
            device = os.stat(path).st_dev
            room = os.statvfs(path)
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            found[path] = {
                "free": room.f_bavail * room.f_frsize,
                "size": room.f_blocks * room.f_frsize,
                # Some file systems count no inodes, and say 0 of 0.
                "files": room.f_favail if room.f_files else -1,
                "read_only": bool(room.f_flag & os.ST_RDONLY),
            }
    return found


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Also a disk that is mounted read-only, as after an error of its own."""
    for name, places in cluster.answers("disk").items():
        for path, room in places.items():
            if room["free"] < LEAST:
                what = f"{path} is full: {room['free'] >> 20} MB are left of {size_text(room['size'])}"
            elif 0 <= room["files"] < FEWEST_FILES:
                what = f"{path} has room for {room['files']} more files only"
            elif room["read_only"] and path != cluster.wanted.cwd:  # code may well be mounted so
                what = f"{path} can only be read"
            else:
                continue
            # row 51
            yield Finding(
                severity="warning",
                hosts=(name,),
                what=what,
                symptom=SYMPTOM,
                fix=Fix(
                    say="see what takes the room, and remove it", command=f"du -xh {path} | sort -h | tail", on=name
                ),
                row=51,
            )
    for machine in cluster.machines:
        if "disk" in machine.hung:
            yield Finding(
                severity="warning",
                hosts=(machine.name,),
                what="a file system there does not answer: the working folder, the home folder or /tmp",
                symptom="ranks that hang while they start, or in their first read",
                fix=Fix(command="mount | grep -e nfs -e lustre -e fuse", on=machine.name, say="one of these, mostly"),
                row=52,
            )


CHECK = Check(probe=probe, judge=judge)
