"""The Job controller: Indexed Jobs become pods, and pods' ends become the Job's conditions."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kube import pod_status
from kube.http_server import Json
from kube.objects import Objects, Selection, now
from kube.pods import Pods

INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
PERIOD = 0.1


@dataclass
class Jobs:
    """All Jobs, looked at every PERIOD seconds."""

    objects: Objects
    pods: Pods
    _started: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    async def run(self) -> None:
        """Look at all Jobs, without end."""
        while True:
            for job in self.objects.select(Selection(resource="jobs")):
                await self._reconcile(job)
            await asyncio.sleep(PERIOD)

    async def created(self, job: Json) -> None:
        """Make the pods of a new Job, unless it is suspended."""
        if job["spec"].get("suspend"):
            await self._update(job, lambda job: pod_status.set_condition(job, "Suspended", True, "JobSuspended"))
            return
        key = (job["metadata"]["namespace"], job["metadata"]["name"])
        self._started.add(key)
        await self._update(job, lambda job: job.setdefault("status", {}).update(startTime=now()))
        for index in range(int(job["spec"].get("completions", job["spec"].get("parallelism", 1)))):
            await self.objects.create("pods", _pod_of(job, index))
        await self.pods.schedule()

    async def deleted(self, namespace: str, name: str) -> None:
        """Delete the pods of a deleted Job."""
        self._started.discard((namespace, name))
        for pod in self._pods_of(namespace, name):
            await self.pods.delete(namespace, pod["metadata"]["name"])

    def _pods_of(self, namespace: str, name: str) -> list[Json]:
        return self.objects.select(Selection(resource="pods", namespace=namespace, labels=f"{JOB_NAME}={name}"))

    async def _reconcile(self, job: Json) -> None:
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        if (namespace, name) not in self._started:
            if not job["spec"].get("suspend"):
                await self.created(job)
            return
        if pod_status.has_condition(job, "Failed") or pod_status.has_condition(job, "Complete"):
            return
        pods = self._pods_of(namespace, name)
        phases = [pod["status"].get("phase", "Pending") for pod in pods]
        counts = {
            "active": sum(phase in ("Pending", "Running") for phase in phases),
            "ready": sum(pod_status.has_condition(pod, "Ready") for pod in pods),
            "succeeded": phases.count("Succeeded"),
            "failed": phases.count("Failed"),
        }
        await self._update(job, lambda job: job.setdefault("status", {}).update(counts))
        if pod_status.has_condition(job, "FailureTarget"):
            if not counts["active"]:
                await self._finish(job, "Failed")
        elif counts["failed"]:
            await self._fail(job, pods, counts)
        elif pods and counts["succeeded"] == len(pods):
            await self._finish(job, "Complete")

    async def _fail(self, job: Json, pods: list[Json], counts: Json) -> None:
        """What one failed pod does: all others are deleted with their logs, unless failures count per index."""
        if "backoffLimitPerIndex" in job["spec"] and not _rule(job, pods):
            if not counts["active"]:
                failed = ",".join(pod["metadata"]["annotations"][INDEX] for pod in pods if _is_failed(pod))
                await self._update(job, lambda job: job["status"].update(failedIndexes=failed))
                await self._set_target(job, "FailedIndexes", "Job has failed indexes")
            return
        reason, message = _rule(job, pods) or ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        await self._set_target(job, reason, message)
        for pod in pods:
            if not _is_failed(pod) and pod["status"].get("phase") != "Succeeded":
                await self.pods.delete(pod["metadata"]["namespace"], pod["metadata"]["name"])

    async def _set_target(self, job: Json, reason: str, message: str) -> None:
        await self._update(job, lambda job: pod_status.set_condition(job, "FailureTarget", True, reason, message))

    async def _finish(self, job: Json, kind: str) -> None:
        def finish(job: Json) -> None:
            conditions: list[Json] = job["status"].get("conditions", [])
            targets = [one for one in conditions if one["type"] == "FailureTarget"]
            why = (targets[0]["reason"], targets[0]["message"]) if targets else ()
            pod_status.set_condition(job, kind, True, *why)
            job["status"]["completionTime"] = now()

        await self._update(job, finish)

    async def _update(self, job: Json, change: Callable[[Json], None]) -> None:
        await self.objects.update("jobs", job["metadata"]["namespace"], job["metadata"]["name"], change)


def _is_failed(pod: Json) -> bool:
    return pod["status"].get("phase") == "Failed"


def _rule(job: Json, pods: list[Json]) -> tuple[str, str] | None:
    """The rule of the podFailurePolicy that fails the whole Job, as reason and message."""
    rules: list[Json] = job["spec"].get("podFailurePolicy", {}).get("rules", [])
    for pod in filter(_is_failed, pods):
        for status in pod["status"].get("containerStatuses", []):
            code = status["state"].get("terminated", {}).get("exitCode")
            for number, rule in enumerate(rules):
                wanted: Json = rule.get("onExitCodes", {})
                inside = code in wanted.get("values", [])
                if wanted and inside is (wanted["operator"] == "In") and code and rule["action"] == "FailJob":
                    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                    text = f"Container {status['name']} for pod {where} failed with exit code {code}"
                    return "PodFailurePolicy", f"{text} matching FailJob rule at index {number}"
    return None


def _pod_of(job: Json, index: int) -> Json:
    """The pod of one index."""
    name = job["metadata"]["name"]
    template = copy.deepcopy(job["spec"]["template"])
    meta, spec = template.get("metadata", {}), template["spec"]
    labels = {**meta.get("labels", {}), JOB_NAME: name, "job-name": name, INDEX: str(index)}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
    suffix = "".join(random.choices(LETTERS, k=5))
    spec["hostname"] = f"{name}-{index}"
    for container in spec["containers"]:
        container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{index}-{suffix}",
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
            "annotations": {**meta.get("annotations", {}), INDEX: str(index)},
            "ownerReferences": [owner],
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }
