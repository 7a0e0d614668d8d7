"""No earlier job of this user failed because of a host's hardware, or lost the host repeatedly."""

from __future__ import annotations

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "ranks on this host fail again, or it is lost again"


def judge(cluster: Cluster) -> Findings:
    """The history is kept on this machine, so a host need not answer."""
    for name, (typed, what) in cluster.wanted.known_bad.items():
        fix = Fix(command=f"muster check --deep -H {typed}", say="if it passes, Muster forgets this")
        yield Finding("warning", (name,), what, SYMPTOM, fix)


CHECK = Check(judge=judge)
