"""Prints the limits and the scheduling of the process: a launcher leaves them as they were."""

import os
import resource
from pathlib import Path


def status(process, name):
    """The lines of a process's status that begin with a name."""
    return [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith(name)]


above = os.getpid()  # becomes the process that started the launcher
while b"CONFORMANCE_RUN=" in Path(f"/proc/{above}/environ").read_bytes():
    above = int(status(above, "PPid:")[0].split()[1])

print("started by another process:", above != os.getpid())

mask = os.umask(0o22)
print(oct(mask))
for name in sorted(name for name in dir(resource) if name.startswith("RLIMIT_")):
    mine, before = resource.getrlimit(getattr(resource, name)), resource.prlimit(above, getattr(resource, name))
    print(name, "unchanged" if mine == before else f"{before} -> {mine}")
print(os.nice(0), os.sched_getscheduler(0), os.sched_getaffinity(0) == os.sched_getaffinity(above))
for name in ("oom_score_adj", "timerslack_ns"):
    print(name, Path(f"/proc/self/{name}").read_text())
for name in ("NoNewPrivs", "Seccomp:", "THP", "CapEff"):
    print(name, status("self", name) == status(above, name))
