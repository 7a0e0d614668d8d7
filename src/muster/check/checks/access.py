"""Every host can be logged in to, without a password and with a known host key."""

from __future__ import annotations

from collections.abc import Iterator

from muster.check.cluster_facts import Cluster, Refusal
from muster.check.definition import Check
from muster.check.finding import Finding, Fix


def judge(cluster: Cluster) -> Iterator[Finding]:
    """A host without an agent is an error: no job runs there."""
    for refusal in cluster.refusals:
        what, symptom, fix, row = _explain(refusal)
        yield Finding(severity="error", hosts=(refusal.name,), what=what, symptom=symptom, fix=fix, row=row)


def _explain(refusal: Refusal) -> tuple[str, str, Fix, int]:
    setup = f"muster setup ssh -H {refusal.spec}"
    kind = refusal.why.kind
    if kind == "denied":
        # row 19
        symptom = "Permission denied (publickey), or a password prompt that waits for ever"
        return "it does not let you in without a password", symptom, Fix(command=setup), 19
    if kind == "unknown-key":
        # row 20
        return "you have not accepted its host key yet", "Host key verification failed.", Fix(command=setup), 20
    if kind == "changed-key":
        fix = Fix(
            say="only if you know why the key changed; setup shows you the new one",
            command=f"ssh-keygen -R {refusal.name} && {setup}",
        )
        return "its host key is not the one you accepted before", "REMOTE HOST IDENTIFICATION HAS CHANGED!", fix, 20
    if kind == "dead":
        return (
            "it does not answer: it is off, or its network is cut",
            "the job does not start",
            Fix(say="leave it out, or see to it"),
            0,
        )
    return refusal.why.why, "the job does not start", Fix(say=refusal.why.hint or ""), 0


CHECK = Check(judge=judge)
