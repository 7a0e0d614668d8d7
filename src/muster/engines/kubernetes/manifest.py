"""The manifest of a job for Kubernetes: a Secret, a headless Service, and an Indexed Job or a JobSet. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from muster.agent.dial_back import NO_WAY
from muster.engines.kubernetes.pod_environment import CONTAINER, JOB_ID, LABEL, PORT, TOKEN_FILE
from muster.engines.kubernetes.yaml_text import Value, yaml_text
from muster.errors import EXIT_MUSTER
from muster.submit.batch_units import Memory

_GROUP = "pods"
"""The name of the only group of pods of a JobSet."""

_TOKEN_KEY = "muster-token"
"""The key of the token in the Secret; no variable of --env, which are keys as well, has a name with a hyphen."""

_STATE = "/var/lib/muster"
"""Where the job directory is in a pod: a volume, because the root file system may be read-only."""

_NOTICE = 30
"""Seconds that ranks have to save after a pod got SIGTERM (agent/notices.py)."""

_LAST_SECONDS = 15
"""Seconds for Muster to end a pod after its ranks have ended."""

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PodRequest:
    """What `muster submit --k8s` asks Kubernetes for."""

    typed: str
    """The command line, for the first comment."""
    command: tuple[str, ...]
    """The command of each container."""
    job_id: str
    """The id of Muster's job."""
    name: str
    """Of the Job; a valid label of DNS with room for `-pods-0-9999`."""
    image: str
    token: str = field(repr=False)
    """The secret that the pods share."""
    nodes: int = 1
    gpus: int | None = None
    gpu_resource: str = "nvidia.com/gpu"
    memory: Memory | None = None
    seconds: int | None = None
    """The time limit of each pod."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL for the ranks."""
    replaces_pods: bool = False
    """Whether the job continues after it has lost a pod, so that Kubernetes should replace it."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables of --env, which may be secrets."""


def job_object(request: PodRequest, *, jobset: bool = False) -> Json:
    """The Indexed Job; `jobset` if it becomes part of a JobSet, which names the pods differently."""
    labels = {"app.kubernetes.io/managed-by": "muster", LABEL: request.job_id}
    spec: Json = {
        "completionMode": "Indexed",
        "completions": request.nodes,
        "parallelism": request.nodes,
        "backoffLimitPerIndex": 0,
        "podFailurePolicy": {"rules": _failure_rules(request)},
        "template": {"metadata": {"labels": labels}, "spec": _pod(request, jobset=jobset)},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": request.name, "labels": labels},
        "spec": spec,
    }


def manifest_text(request: PodRequest, job: Json, *, jobset: bool = False) -> str:
    """All objects in one file; `job` is the Job, possibly with changes of the user."""
    labels = {"app.kubernetes.io/managed-by": "muster", LABEL: request.job_id}
    metadata = {"name": request.name, "labels": labels}
    documents: list[Json] = []
    if request.nodes > 1 or request.env:
        data = {**({_TOKEN_KEY: request.token} if request.nodes > 1 else {}), **request.env}
        documents.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    if request.nodes > 1 and not jobset:
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: request.job_id}}
        documents.append({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
    documents.append(_in_jobset(request, job) if jobset else job)
    inside = "spec.replicatedJobs.template.spec." if jobset else "spec."
    comments = {
        **{f"{inside}{path}": text for path, text in _COMMENTS.items()},
        "spec.clusterIP": "Headless: it only gives each pod a name.",
        f"stringData.{_TOKEN_KEY}": "The pods trust each other because they share it.",
    }
    head = f"# Written by: {request.typed}\n"
    return head + "---\n".join(yaml_text(cast("Mapping[str, Value]", each), comments) for each in documents)


def first_pod(name: str, *, jobset: bool = False) -> str:
    """The name of the first pod in the cluster's DNS, which search domains complete."""
    return f"{name}-{_GROUP}-0-0.{name}" if jobset else f"{name}-0.{name}"


def _in_jobset(request: PodRequest, job: Json) -> Json:
    """The JobSet with one group of pods; it creates the headless Service itself."""
    group = {"name": _GROUP, "replicas": 1, "template": {"spec": job["spec"]}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": job["metadata"],
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": request.name},
            "replicatedJobs": [group],
        },
    }


def _failure_rules(request: PodRequest) -> list[Json]:
    # A run that continues without a pod also continues without one that cannot reach it.
    codes = [EXIT_MUSTER] if request.replaces_pods else [NO_WAY, EXIT_MUSTER]
    exits = {"containerName": CONTAINER, "operator": "In", "values": codes}
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return [{"action": "FailJob", "onExitCodes": exits}, *([disrupted] if request.replaces_pods else ())]


def _pod(request: PodRequest, *, jobset: bool) -> Json:
    spec: Json = {
        **({} if jobset or request.nodes == 1 else {"subdomain": request.name}),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(_NOTICE, math.ceil(request.grace)) + _LAST_SECONDS,
        **({} if request.seconds is None else {"activeDeadlineSeconds": request.seconds}),
        "containers": [_container(request, jobset=jobset)],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "state", "emptyDir": {}},
        ],
    }
    if request.nodes > 1:
        secret = {"secretName": request.name, "items": [{"key": _TOKEN_KEY, "path": "token"}]}
        spec["volumes"].append({"name": "token", "secret": secret})
    return spec


def _container(request: PodRequest, *, jobset: bool) -> Json:
    variables = {JOB_ID: request.job_id, "XDG_STATE_HOME": _STATE}
    mounts: list[Json] = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "state", "mountPath": _STATE}]
    if request.nodes > 1:
        first = first_pod(request.name, jobset=jobset)
        port = str(PORT)
        variables |= {"PET_NNODES": str(request.nodes), "PET_MASTER_ADDR": first, "PET_MASTER_PORT": port}
        mounts.append({"name": "token", "mountPath": TOKEN_FILE.rpartition("/")[0], "readOnly": True})
    env: list[Json] = [{"name": name, "value": value} for name, value in variables.items()]
    env += [{"name": name, "valueFrom": {"secretKeyRef": {"name": request.name, "key": name}}} for name in request.env]
    limits: Json = {} if request.gpus is None else {request.gpu_resource: request.gpus}
    if request.memory is not None:
        limits["memory"] = f"{request.memory.amount}{request.memory.unit}i"
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": list(request.command),
        "env": env,
        **({"resources": {"limits": limits}} if limits else {}),
        "volumeMounts": mounts,
    }


_COMMENTS = {
    "backoffLimitPerIndex": "A pod that fails is not started again, and the others, with their logs, are not deleted.\n"
    "Every pod ends with the exit code of the run.",
    "podFailurePolicy": "125: Muster failed, or a pod was lost; 119, if all pods are needed: one could not reach the "
    "first.\nPods that wait for the others need not start any more.",
    "template.spec.terminationGracePeriodSeconds": "SIGTERM is a notice: ranks save, then Muster ends the pod.",
    "template.spec.containers.env": "PET_: torchrun's own variables, which Kubeflow sets as well.",
    "template.spec.volumes": "The default /dev/shm has 64 MB, too little for NCCL and data loaders.",
}
"""Comments in the Job, by the path below `spec`."""
