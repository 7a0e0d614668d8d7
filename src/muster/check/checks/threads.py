"""OMP_NUM_THREADS lets ranks use the CPUs they have, and no more."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings
from muster.check.fixes import unset
from muster.text import count

SLOW = "data loading and CPU work several times slower than they could be, and CPUs that idle"
CROWDED = "ranks that fight for the CPUs: everything on them is slow, without a message"


def judge(cluster: Cluster) -> Findings:
    """Left alone, `muster run` shares the CPUs out; a value that is set wins over that."""
    for name, answer in cluster.answers(operating_system.variables).items():
        machine = cluster.machine(name)
        value, cpus = answer["env"].get("OMP_NUM_THREADS", ""), machine.up["cpus"]
        if not value.isdigit() or not int(value):
            continue
        used, ranks = int(value) * machine.ranks, count(machine.ranks, "rank")
        if int(value) == 1 and used * 2 <= cpus:  # what torchrun sets; more than one is somebody's choice
            what = f"OMP_NUM_THREADS={value} leaves {cpus - used} of its {cpus} CPUs idle with {ranks}"
        elif used > cpus * 2:
            what = f"OMP_NUM_THREADS={value} makes {used} threads for {cpus} CPUs with {ranks}"
        else:
            continue
        fix = unset(cluster, name, "OMP_NUM_THREADS", "Muster then shares the CPUs out")
        yield Finding("warning", (name,), what, SLOW if used < cpus else CROWDED, fix, row=29)


CHECK = Check(judge=judge)
