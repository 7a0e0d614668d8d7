"""Every host can be logged in to, without a password and with a known host key."""

from __future__ import annotations

from muster.check.cluster_facts import Cluster, Refusal
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

DENIED = "Permission denied (publickey), or a password prompt that waits for ever"
CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED!"
NO_START = "the job does not start"


def judge(cluster: Cluster) -> Findings:
    """A host without an agent is an error: no job runs there."""
    for refusal in cluster.refusals:
        yield _explain(refusal, (refusal.name,), f"muster setup ssh -H {refusal.spec}")


def _explain(refusal: Refusal, host: tuple[str], setup: str) -> Finding:
    kind = refusal.why.kind
    if kind == "denied":
        what = "it does not let you in without a password"
        return Finding("error", host, what, DENIED, Fix(command=setup), row=19)
    if kind == "unknown-key":
        what = "you have not accepted its host key yet"
        return Finding("error", host, what, "Host key verification failed.", Fix(command=setup), row=20)
    if kind == "changed-key":
        what = "its host key is not the one you accepted before"
        why = "only if you know why the key changed; setup shows you the new one"
        fix = Fix(say=why, command=f"ssh-keygen -R {refusal.name} && {setup}")
        return Finding("error", host, what, CHANGED, fix, row=20)
    if kind == "dead":
        what = "it does not answer: it is off, or its network is cut"
        return Finding("error", host, what, NO_START, Fix(say="leave it out, or see to it"))
    return Finding("error", host, refusal.why.why, NO_START, Fix(say=refusal.why.hint or ""))


CHECK = Check(judge=judge)
