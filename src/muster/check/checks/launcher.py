"""No environment variable left by another launcher contradicts the job."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings
from muster.check.fixes import unset
from muster.text import count

SYMPTOM = "Timed out waiting for clients: 2/3 clients joined, or a duplicate rank, when a script is started by hand"


def judge(cluster: Cluster) -> Findings:
    """A note, because `muster run` sets all of them for each rank."""
    for name, answer in cluster.answers(operating_system.variables).items():
        for variable in operating_system.LAUNCHERS:
            value = answer["env"].get(variable)
            if value is None or (variable == "WORLD_SIZE" and value == str(cluster.world_size)):
                continue
            right = f", but the job has {count(cluster.world_size, 'rank')}" if variable == "WORLD_SIZE" else ""
            what = f"{variable}={value} is set{right}; `muster run` overrides it for each rank"
            yield Finding("note", (name,), what, SYMPTOM, unset(cluster, name, variable), row=45)


CHECK = Check(judge=judge)
