"""Why a pod does not run yet, and why it has ended: one sentence from its JSON.

The texts and where they are were recorded on Kubernetes 1.33 in 2026-11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

Json = Mapping[str, Any]
"""An object of the API as JSON."""

_LONGEST = 300
"""Maximum number of characters of a message of Kubernetes in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a pod is in its state."""

    what: str
    """A clause about the pod: `its image could not be pulled (…)`."""
    hint: str = ""
    """What to do about it."""
    is_final: bool = False
    """Whether waiting is most likely useless."""


def part(value: Any, *keys: str) -> Json:
    """An object inside another one; empty if it is missing."""
    for key in keys:
        value = cast("Json", value).get(key) if isinstance(value, Mapping) else None
    return cast("Json", value) if isinstance(value, Mapping) else {}


def parts(value: Any, *keys: str) -> list[Json]:
    """The objects of a list inside an object; empty if it is missing."""
    found = part(value, *keys[:-1]).get(keys[-1])
    return [part(each) for each in cast("list[Any]", found)] if isinstance(found, list) else []


def name_of(pod: Json) -> str:
    """The name of a pod."""
    return str(pod["metadata"]["name"])


def container_status(pod: Json, container: str) -> Json:
    """The status of one container; empty if the kubelet has not reported it yet."""
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    found = (each for kind in kinds for each in parts(pod, "status", kind))
    return next((each for each in found if each.get("name") == container), part(None))


def is_running(pod: Json, container: str) -> bool:
    """Whether commands can run in this container."""
    state = part(container_status(pod, container), "state")
    return "running" in state and not is_leaving(pod) and _status(pod).get("phase") == "Running"


def is_leaving(pod: Json) -> bool:
    """Whether the pod is being deleted."""
    return bool(part(pod, "metadata").get("deletionTimestamp"))


def is_over(pod: Json) -> bool:
    """Whether no container of the pod runs again."""
    return _status(pod).get("phase") in ("Succeeded", "Failed")


def why_waiting(pod: Json, container: str) -> Reason:
    """Why a container does not run yet."""
    ended = why_ended(pod, container) if is_over(pod) or is_leaving(pod) else None
    if ended is not None:
        return ended
    unscheduled = _unscheduled(pod)
    if unscheduled is not None:
        return unscheduled
    status = container_status(pod, container)
    waiting = part(status, "state", "waiting")
    reason, message = str(waiting.get("reason") or ""), _short(waiting.get("message"))
    image = _image(pod, container)
    if reason in _IMAGE:
        return Reason(
            what=f"its image{f' {image}' if image else ''} could not be pulled ({message or reason})",
            hint=f"check the name of the image and imagePullSecrets: `kubectl describe pod {name_of(pod)}`",
            is_final=reason != "ErrImagePull",  # which alternates with ImagePullBackOff
        )
    if reason == "CrashLoopBackOff":
        last = part(status, "lastState", "terminated")
        return Reason(
            what=f"its container {container} keeps ending ({_exit(last)})",
            hint=f"`kubectl logs --previous {name_of(pod)}` shows why",
            is_final=True,
        )
    if reason in _CONFIGURATION:
        what = f"its container {container} could not be created ({message or reason})"
        return Reason(what=what, hint=f"`kubectl describe pod {name_of(pod)}` shows more", is_final=True)
    if reason == "PodInitializing":
        return _initializing(pod)
    if reason in ("", "ContainerCreating"):
        return Reason(what=f"its container is being created from {image}" if image else "its container is starting")
    return Reason(what=f"its container {container} is waiting ({reason}{f': {message}' if message else ''})")


_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIGURATION = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")


def _unscheduled(pod: Json) -> Reason | None:
    condition = _condition(pod, "PodScheduled")
    if condition.get("status") != "False":
        # Without a scheduler, not even the condition is there.
        return None if part(pod, "spec").get("nodeName") else Reason(what="Kubernetes has not scheduled it yet")
    if condition.get("reason") == "SchedulingGated":
        gates = ", ".join(str(gate.get("name")) for gate in parts(pod, "spec", "schedulingGates"))
        return Reason(what=f"a scheduling gate holds it back ({gates or 'unknown'})", hint="its queue admits it later")
    message = _short(str(condition.get("message") or "").partition(". ")[0])  # what follows is about preemption
    what = f"Kubernetes cannot schedule it ({message or condition.get('reason')})"
    hint = f"`kubectl describe pod {name_of(pod)}` shows what it requests; the GPUs may be in use by other pods"
    return Reason(what=what, hint=hint)


def _initializing(pod: Json) -> Reason:
    for status in parts(pod, "status", "initContainerStatuses"):
        state, waiting = part(status, "state"), part(status, "state", "waiting")
        if waiting.get("reason") not in (None, "PodInitializing"):
            return Reason(what=f"its init container {status.get('name')} is waiting ({waiting.get('reason')})")
        if "running" in state and not status.get("started"):
            return Reason(what=f"its init container {status.get('name')} is still running")
    return Reason(what="its init containers are still running")


def why_ended(pod: Json, container: str, *, deleted: bool = False) -> Reason | None:
    """Why the container ended or is about to end; None if it runs. `deleted` says that the object is gone."""
    status = _status(pod)
    if status.get("reason") == "Evicted":
        return Reason(what=f"its pod was evicted ({_short(status.get('message')) or 'no message'})", hint=_EVICTED)
    target = _condition(pod, "DisruptionTarget")
    if target.get("status") == "True":
        return _disrupted(pod, target)
    ended = _container_end(pod, container)
    if ended is not None and not (deleted or is_leaving(pod)):
        return ended
    if status.get("reason"):  # DeadlineExceeded, NodeLost, Shutdown and so on
        what = f"its pod ended with {status.get('reason')}"
        message = _short(status.get("message"))
        return Reason(what=f"{what} ({message})" if message else what)
    if ended is not None and ended.hint == _MEMORY:
        return ended
    if deleted or is_leaving(pod):
        return Reason(what="its pod was deleted" if deleted else "its pod is being deleted")
    if is_over(pod):
        return Reason(what=f"its pod has ended (phase {status.get('phase')})")
    return None


_MEMORY = "raise resources.limits.memory of the container"
_EVICTED = "raise the request of the resource that the message names, or free it on the node"


def _disrupted(pod: Json, target: Json) -> Reason:
    """A pod that Kubernetes itself ends: conditions of type DisruptionTarget."""
    reason, message = target.get("reason"), _short(target.get("message"))
    node = f" {part(pod, 'spec')['nodeName']}" if part(pod, "spec").get("nodeName") else ""
    said = f" ({message})" if message else ""
    if reason == "PreemptionByScheduler":
        return Reason(what=f"its pod was preempted{said}", hint="give its pods a higher priorityClassName")
    if reason == "EvictionByEvictionAPI":
        return Reason(what=f"its pod was evicted, as for a drain of node{node}{said}")
    if reason == "DeletionByTaintManager":
        return Reason(what=f"its node{node} is lost or was tainted, so its pod was deleted{said}")
    if reason == "TerminationByKubelet":
        return Reason(what=f"its node{node} ended the pod{said}", hint=_EVICTED)
    return Reason(what=f"Kubernetes ended its pod ({message or reason})")


def _container_end(pod: Json, container: str) -> Reason | None:
    status = container_status(pod, container)
    terminated = part(status, "state", "terminated")
    if not terminated and status.get("restartCount"):
        terminated = part(status, "lastState", "terminated")
    if not terminated:
        return None
    if terminated.get("reason") == "OOMKilled":
        limit = part(_spec_of(pod, container), "resources", "limits").get("memory")
        at = f" of {limit}" if limit else ""
        return Reason(what=f"its container {container} reached its memory limit{at} (OOMKilled)", hint=_MEMORY)
    message = _short(terminated.get("message"))
    return Reason(what=f"its container {container} ended ({_exit(terminated)}{f': {message}' if message else ''})")


def container_id(pod: Json, container: str) -> str:
    """The id of the running container; another one means that it was restarted."""
    return str(container_status(pod, container).get("containerID") or "")


def seconds_left(pod: Json) -> float | None:
    """How long a pod that is being deleted keeps running, counted from the request; None if it is not deleted.

    Not from deletionTimestamp, because clocks differ.
    """
    left = part(pod, "metadata").get("deletionGracePeriodSeconds")
    return float(left) if is_leaving(pod) and isinstance(left, int) else None


def _exit(terminated: Json) -> str:
    code = terminated.get("exitCode")
    reason = terminated.get("reason")
    return f"exit code {code}" if reason in (None, "Error", "Completed") else f"{reason}, exit code {code}"


def _condition(pod: Json, kind: str) -> Json:
    return next((each for each in parts(pod, "status", "conditions") if each.get("type") == kind), part(None))


def _spec_of(pod: Json, container: str) -> Json:
    return next((each for each in parts(pod, "spec", "containers") if each.get("name") == container), part(None))


def _image(pod: Json, container: str) -> str:
    return str(_spec_of(pod, container).get("image") or "")


def _status(pod: Json) -> Json:
    return part(pod, "status")


def _short(message: object) -> str:
    """A message of Kubernetes as part of a sentence."""
    text = " ".join(str(message or "").split()).rstrip(". ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
