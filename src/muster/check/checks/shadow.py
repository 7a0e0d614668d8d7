"""No file beside the script hides a module that torch needs."""

from __future__ import annotations

from muster.agent.probes import files
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = (
    "cannot import name 'GenericAlias' from partially initialized module 'types', or an import that makes no sense"
)


def judge(cluster: Cluster) -> Findings:
    """Not every such file does harm, so it is a warning."""
    for name, paths in cluster.answers(files.shadow).items():
        for path in paths:
            folder, _, entry = path.rpartition("/")
            module = entry.partition(".")[0]
            hidden = module if module in ("torch", "numpy") else f"Python's own module `{module}`"
            fix = Fix(command=f"mv {path} {folder}/my_{entry}", on=name, say="and change who imports it")
            yield Finding("warning", (name,), f"{path} hides {hidden}", SYMPTOM, fix, row=25)


CHECK = Check(probe=files.shadow, judge=judge)
