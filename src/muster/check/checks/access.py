"""Every host accepts a login without a password and has a known host key."""

from __future__ import annotations

from muster.check.cluster_facts import Cluster, Refusal
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

DENIED = "Permission denied (publickey), or a password prompt that waits forever"
CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED!"
NO_START = "the job does not start"


def judge(cluster: Cluster) -> Findings:
    """A host on which no agent starts is an error, because no job can run there."""
    for refusal in cluster.refusals:
        yield _explain(refusal, (refusal.name,), f"muster setup ssh -H {refusal.spec}")


def _explain(refusal: Refusal, host: tuple[str], setup: str) -> Finding:
    kind = refusal.why.kind
    if kind == "denied":
        what = "cannot log in without a password"
        return Finding("error", host, what, DENIED, Fix(command=setup), row=19)
    if kind == "unknown-key":
        what = "unknown host key"
        return Finding("error", host, what, "Host key verification failed.", Fix(command=setup), row=20)
    if kind == "changed-key":
        what = "the host key has changed since you accepted it"
        why = "only if you know why the key changed; `muster setup ssh` shows the new key"
        fix = Fix(say=why, command=f"ssh-keygen -R {refusal.name} && {setup}")
        return Finding("error", host, what, CHANGED, fix, row=20)
    if kind == "dead":
        what = "does not answer: the host is down or its network is cut"
        return Finding("error", host, what, NO_START, Fix(say="repair the host, or leave it out of -H"))
    return Finding("error", host, refusal.why.why, NO_START, Fix(say=refusal.why.hint or ""))


CHECK = Check(judge=judge)
