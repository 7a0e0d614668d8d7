"""Documents about pods as a kubelet, a scheduler and controllers write them; texts seen on Kubernetes 1.33.  Pure."""

from __future__ import annotations

from typing import Any

from kube.http_server import Json
from kube.objects import now


def set_condition(pod: Json, kind: str, status: bool, reason: str = "", message: str = "") -> None:
    """Set a condition of a pod, a node or a Job."""
    conditions: list[Json] = pod.setdefault("status", {}).setdefault("conditions", [])
    new: Json = {"type": kind, "status": str(status), "lastTransitionTime": now()}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    conditions[:] = [*(other for other in conditions if other["type"] != kind), new]


def has_condition(found: Json, kind: str) -> bool:
    """Whether a condition is true."""
    conditions: list[Json] = found.get("status", {}).get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def set_unschedulable(pod: Json, message: str) -> None:
    """No node can take it."""
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    set_condition(pod, "PodScheduled", False, "Unschedulable", message)


def set_scheduled(pod: Json, node: str) -> None:
    """A node was chosen, and its kubelet begins."""
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Pending", "startTime": now(), "qosClass": "BestEffort"}
    set_condition(pod, "PodScheduled", True)
    set_waiting(pod, "ContainerCreating")


def set_waiting(pod: Json, reason: str, message: str = "") -> None:
    """Its containers wait for something."""
    state: Json = {"reason": reason, **({"message": message} if message else {})}
    pod["status"]["containerStatuses"] = [
        _container_status(container, {"waiting": state}) for container in pod["spec"]["containers"]
    ]
    _set_ready(pod, False)


def set_running(pod: Json, address: str) -> None:
    """All containers run; what ended one of them before stays known as its last state."""
    before = {one["name"]: one for one in pod["status"].get("containerStatuses", [])}
    statuses: list[Json] = []
    for container in pod["spec"]["containers"]:
        status = _container_status(container, {"running": {"startedAt": now()}})
        old = before.get(container["name"], {})
        if "terminated" in old.get("state", {}):
            status["lastState"] = {"terminated": old["state"]["terminated"]}
            status["restartCount"] = old.get("restartCount", 0) + 1
        statuses.append(status)
    pod["status"] |= {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "containerStatuses": statuses}
    _set_ready(pod, True)


def set_terminated(pod: Json, name: str, code: int, reason: str, message: str = "") -> None:
    """A container has ended."""
    terminated: Json = {"exitCode": code, "reason": reason, "finishedAt": now(), "startedAt": now()}
    if message:
        terminated["message"] = message
    for status in pod["status"].get("containerStatuses", []):
        if status["name"] == name:
            status |= {"state": {"terminated": terminated}, "ready": False, "started": False}
    _set_ready(pod, False)


def set_finished(pod: Json) -> None:
    """All containers have ended, and none restarts."""
    codes = [one["state"].get("terminated", {}).get("exitCode", 1) for one in pod["status"]["containerStatuses"]]
    pod["status"]["phase"] = "Failed" if any(codes) else "Succeeded"


def set_evicted(pod: Json, message: str) -> None:
    """The kubelet evicted it: its node lacked something, or it took too much."""
    pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": message}
    set_condition(pod, "DisruptionTarget", True, "TerminationByKubelet", message)


def _set_ready(pod: Json, ready: bool) -> None:
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod, kind, ready, "" if ready else "ContainersNotReady")


def _container_status(container: Json, state: Json) -> Json:
    running = "running" in state
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "restartCount": 0,
        "ready": running,
        "started": running,
        "state": state,
        "lastState": {},
    }


def node_document(name: str, *, gpus: int) -> Json:
    """A node that is ready."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    node: Json = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"capacity": capacity, "allocatable": dict(capacity)},
    }
    set_condition(node, "Ready", True, "KubeletReady", "kubelet is posting ready status")
    return node


def requested_gpus(pod: Json) -> int:
    """GPUs of any vendor that its containers ask for."""
    total = 0
    for container in pod["spec"]["containers"]:
        limits: dict[str, Any] = container.get("resources", {}).get("limits", {})
        total += sum(int(number) for name, number in limits.items() if name.endswith("/gpu"))
    return total
