"""Why a pod waits or has ended: one sentence from JSON as Kubernetes 1.33 sent it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engines.kubernetes.pod_reasons import (
    is_running,
    seconds_left,
    why_ended,
    why_waiting,
)

UNSCHEDULABLE = (
    "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: 2 No preemption "
    "victims found for incoming pod."
)


def pod(phase: str = "Running", *, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A pod with one container."""
    one = {"name": "main", "containerID": "containerd://1", "restartCount": 0, "state": state or {"running": {}}}
    return {
        "metadata": {"name": "train-1", "namespace": "default", "uid": "u1"},
        "spec": {
            "nodeName": "n2",
            "containers": [{"name": "main", "image": "img:1", "resources": {"limits": {"memory": "2Gi"}}}],
        },
        "status": {"phase": phase, "containerStatuses": [one], **status},
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": kind, "status": status, "reason": reason, "message": message}]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod("Pending", state={"waiting": {"reason": reason, "message": message}})


def leaving(found: dict[str, Any], grace: int = 30) -> dict[str, Any]:
    found["metadata"] |= {"deletionTimestamp": "2026-11-18T02:00:00Z", "deletionGracePeriodSeconds": grace}
    return found


def unscheduled(reason: str, message: str = "") -> dict[str, Any]:
    found = pod("Pending", containerStatuses=[], conditions=condition("PodScheduled", "False", reason, message))
    del found["spec"]["nodeName"]
    return found


@pytest.mark.parametrize(
    ("found", "what", "is_final"),
    [
        (
            unscheduled("Unschedulable", UNSCHEDULABLE),
            "Kubernetes cannot schedule it (0/2 nodes are available: 2 Insufficient nvidia.com/gpu)",
            False,
        ),
        (unscheduled("SchedulingGated"), "a scheduling gate holds it back (unknown)", False),
        (
            waiting("ErrImagePull", 'failed to pull and unpack image "img:1": not found'),
            'its image img:1 could not be pulled (failed to pull and unpack image "img:1": not found)',
            False,
        ),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "img:1"'),
            'its image img:1 could not be pulled (Back-off pulling image "img:1")',
            True,
        ),
        (
            waiting("CreateContainerConfigError", 'secret "x" not found'),
            'its container main could not be created (secret "x" not found)',
            True,
        ),
        (waiting("ContainerCreating"), "its container is being created from img:1", False),
        (pod("Failed", reason="Evicted", message="disk pressure"), "its pod was evicted (disk pressure)", False),
        (pod("Pending", containerStatuses=None), "its container is being created from img:1", False),
    ],
)
def test_the_reason_why_a_pod_waits(found: dict[str, Any], what: str, is_final: bool) -> None:
    reason = why_waiting(found, "main")
    assert (reason.what, reason.is_final) == (what, is_final)
    assert not is_running(found, "main")


OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
PREEMPTED = condition(
    "DisruptionTarget",
    "True",
    "PreemptionByScheduler",
    "default-scheduler: preempting to accommodate a higher priority pod",
)
EVICTED = 'Usage of EmptyDir volume "s" exceeds the limit "10Mi". '


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (pod(state=OOM), "its container main reached its memory limit of 2Gi (OOMKilled)"),
        (pod(state={"terminated": {"reason": "Error", "exitCode": 3}}), "its container main ended (exit code 3)"),
        (
            pod("Failed", reason="Evicted", message=EVICTED),
            'its pod was evicted (Usage of EmptyDir volume "s" exceeds the limit "10Mi")',
        ),
        (
            leaving(pod(conditions=PREEMPTED)),
            "its pod was preempted (default-scheduler: preempting to accommodate a higher priority pod)",
        ),
        (
            leaving(pod(conditions=condition("DisruptionTarget", "True", "DeletionByTaintManager"))),
            "its node n2 is lost or was tainted, so its pod was deleted",
        ),
        (leaving(pod()), "its pod is being deleted"),
        (pod("Failed", reason="DeadlineExceeded"), "its pod ended with DeadlineExceeded"),
        (pod("Succeeded", containerStatuses=[]), "its pod has ended (phase Succeeded)"),
    ],
)
def test_the_reason_why_a_pod_ended(found: dict[str, Any], what: str) -> None:
    reason = why_ended(found, "main")
    assert reason is not None
    assert reason.what == what


def test_a_restarted_container_still_says_why_it_ended() -> None:
    found = pod()
    found["status"]["containerStatuses"][0] |= {"restartCount": 1, "lastState": OOM}
    reason = why_ended(found, "main")
    assert reason is not None
    assert "OOMKilled" in reason.what


def test_a_running_pod_has_no_reason_and_a_deleted_one_does() -> None:
    assert why_ended(pod(), "main") is None
    assert is_running(pod(), "main")
    gone = why_ended(pod(), "main", deleted=True)
    assert gone is not None
    assert gone.what == "its pod was deleted"


def test_the_time_left_is_the_grace_period_not_a_foreign_clock() -> None:
    assert seconds_left(leaving(pod(), grace=8)) == 8.0
    assert seconds_left(pod()) is None


@pytest.mark.parametrize("found", [{"metadata": {"name": "x"}}, {"metadata": {"name": "x"}, "status": None, "spec": 3}])
def test_incomplete_json_is_not_an_error(found: dict[str, Any]) -> None:
    assert not is_running(found, "main")
    assert why_waiting(found, "main").what == "Kubernetes has not scheduled it yet"
