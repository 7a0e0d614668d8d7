"""Pods of Kubernetes: the user may do what Muster needs, and the GPUs that a pod requests are visible in it."""

from __future__ import annotations

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.engines.kubernetes.pod_facts import PodFacts
from muster.text import count

_EFFECTS = {
    ("get", "pods", ""): "`muster run` cannot find the pods",
    ("list", "pods", ""): "`muster run --pods` cannot find the pods",
    ("watch", "pods", ""): "when a pod is lost, Muster cannot say why: evicted, preempted, deleted or out of memory",
    ("create", "pods", "exec"): "from Kubernetes 1.35 on, Muster cannot start anything in the pods",
    ("get", "pods", "exec"): "Muster starts one kubectl for each pod, which needs more memory and time",
}
"""What happens without each permission."""

_NO_GPU = "CUDA error: no CUDA-capable device is detected, or fewer ranks than expected"


def judge(cluster: Cluster) -> Findings:
    """Nothing without pods."""
    if cluster.pods is None:
        return
    yield from _permissions(cluster.pods)
    for machine in cluster.machines:
        wanted, seen = cluster.pods.gpus.get(machine.name, 0), machine.up["gpus"]
        if seen < wanted:
            what = f"its pod requests {count(wanted, 'GPU')}, but only {seen} are visible in it"
            fix = Fix(say="check the device plugin of its node, and that no CUDA_VISIBLE_DEVICES hides them")
            yield Finding("error", (machine.name,), what, _NO_GPU, fix)
        elif seen > wanted == 0:
            what = f"{count(seen, 'GPU')} visible in its pod, which requests none, so other pods may use the same"
            fix = Fix(say=f"request them: resources.limits: {{nvidia.com/gpu: {seen}}}")
            yield Finding("warning", (machine.name,), what, "CUDA out of memory, without a reason in this job", fix)


def _permissions(pods: PodFacts) -> Findings:
    for verb, resource, subresource in pods.denied:
        whole = f"{resource}/{subresource}" if subresource else resource
        what = f"no permission to {verb} {whole} in namespace {pods.namespace}"
        rule = f'{{apiGroups: [""], resources: ["{whole}"], verbs: [{verb}]}}'
        yield Finding("warning", (), what, _EFFECTS[verb, resource, subresource], Fix(say=f"add to your Role: {rule}"))


CHECK = Check(judge=judge)
