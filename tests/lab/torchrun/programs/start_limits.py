"""Prints the limits and the scheduling of the process: a launcher leaves them as they were."""

import os
import resource

mask = os.umask(0o22)
print(oct(mask))
for name in sorted(name for name in dir(resource) if name.startswith("RLIMIT_")):
    print(name, resource.getrlimit(getattr(resource, name)))
print(os.nice(0), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0))
with open("/proc/self/oom_score_adj") as score:
    print(score.read())
with open("/proc/self/timerslack_ns") as slack:
    print(slack.read())
with open("/proc/self/status") as status:
    print([line for line in status if line.startswith(("NoNewPrivs", "Seccomp:", "THP", "CapEff"))])
