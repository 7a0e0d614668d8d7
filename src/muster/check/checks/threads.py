"""OMP_NUM_THREADS matches the number of CPUs per rank."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings
from muster.check.fixes import unset
from muster.text import count

SLOW = "data loading and CPU work are several times slower than necessary, while CPUs are idle"
CROWDED = "ranks compete for the CPUs: all CPU work is slow, without any message"


def judge(cluster: Cluster) -> Findings:
    """By default `muster run` divides the CPUs among the ranks; a value set by the user overrides that."""
    for name, answer in cluster.answers(operating_system.variables).items():
        machine = cluster.machine(name)
        value, cpus = answer["env"].get("OMP_NUM_THREADS", ""), machine.up["cpus"]
        if not value.isdigit() or not int(value):
            continue
        used, ranks = int(value) * machine.ranks, count(machine.ranks, "rank")
        if int(value) == 1 and used * 2 <= cpus:  # torchrun sets 1; any other value was chosen on purpose
            what = f"OMP_NUM_THREADS={value} leaves {cpus - used} of {cpus} CPUs idle with {ranks}"
        elif used > cpus * 2:
            what = f"OMP_NUM_THREADS={value} starts {used} threads on {cpus} CPUs with {ranks}"
        else:
            continue
        fix = unset(cluster, name, "OMP_NUM_THREADS", "Muster then divides the CPUs among the ranks")
        yield Finding("warning", (name,), what, SLOW if used < cpus else CROWDED, fix, row=29)


CHECK = Check(judge=judge)
