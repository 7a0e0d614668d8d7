"""No file next to the script shadows a module that torch needs."""

from __future__ import annotations

from muster.agent.probes import files
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "cannot import name 'GenericAlias' from partially initialized module 'types', or another baffling ImportError"


def judge(cluster: Cluster) -> Findings:
    """A warning, because not every such file causes a failure."""
    for name, paths in cluster.answers(files.shadow).items():
        for path in paths:
            folder, _, entry = path.rpartition("/")
            module = entry.partition(".")[0]
            hidden = module if module in ("torch", "numpy") else f"the standard library module `{module}`"
            fix = Fix(command=f"mv {path} {folder}/my_{entry}", on=name, say="and update the files that import it")
            yield Finding("warning", (name,), f"{path} shadows {hidden}", SYMPTOM, fix, row=25)


CHECK = Check(probe=files.shadow, judge=judge)
