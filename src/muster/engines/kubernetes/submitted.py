"""A job that `muster submit --k8s` has created, from the user's machine: its first pod, and how kubectl reaches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from muster.engines.kubernetes.pod_environment import CONTAINER, LABEL
from muster.shared.bootstrap import COMMAND
from muster.text import printable

_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, kw_only=True)
class FirstPod:
    """The pod of the controller, as the API server knows it."""

    name: str
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    reason: str = ""
    """Why it waits or has failed, if Kubernetes says so."""
    exit_code: int | None = None
    """Of its container, once it has ended."""
    last_words: str = ""
    """What Muster left in /dev/termination-log, once it has ended."""


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """Where a job is: the context and the namespace of kubectl, and the objects of the job."""

    context: str
    """Empty inside a cluster, where kubectl needs none."""
    namespace: str
    kind: str
    """`job` or `jobset`."""
    name: str
    job_id: str
    """Muster's own."""
    python: str = "python3"
    """The interpreter in the pods that runs commands about the job."""

    @property
    def where(self) -> tuple[str, ...]:
        """The options of kubectl that choose cluster and namespace."""
        from muster.engines.kubernetes.kubectl import where_options  # few have such jobs

        return where_options(self.context, self.namespace)

    def first_pod(self) -> FirstPod | None:
        """The pod of the controller; None if there is none, yet or any more."""
        from muster.engines.kubernetes.kubectl import ask_json

        chosen = ("-l", f"{LABEL}={self.job_id},{_INDEX}=0")
        items: list[Any] = ask_json("get", "pods", *self.where, *chosen).get("items") or []
        newest = max(items, key=lambda item: str(item["metadata"].get("creationTimestamp") or ""), default=None)
        return None if newest is None else _read(newest)

    def exists(self) -> bool:
        """Whether the job has not been deleted."""
        from muster.engines.kubernetes.kubectl import ask_kubectl

        return bool(ask_kubectl("get", self.kind, self.name, *self.where, "--ignore-not-found", "-o", "name").strip())

    def exec_argv(self, pod: str) -> tuple[str, ...]:
        """The command line that runs Muster's code from stdin in a pod."""
        command = (self.python, "-c", COMMAND)
        return ("kubectl", "exec", *self.where, "-i", "-q", pod, "-c", CONTAINER, "--", *command)

    def forward_argv(self, pod: str, here: int, there: int) -> tuple[str, ...]:
        """The command line that forwards a port of this machine to one of a pod."""
        return ("kubectl", "port-forward", *self.where, f"pod/{pod}", f"{here}:{there}", "--address=127.0.0.1")

    def logs_argv(self, pod: str, *options: str) -> tuple[str, ...]:
        """The command line that prints what the controller has printed."""
        return ("kubectl", "logs", *self.where, pod, "-c", CONTAINER, *options)

    def delete(self) -> None:
        """Delete all objects of the job."""
        from muster.engines.kubernetes.kubectl import ask_kubectl

        chosen = ("-l", f"{LABEL}={self.job_id}", "--ignore-not-found", "--wait=false")
        ask_kubectl("delete", f"{self.kind},service,secret", *self.where, *chosen)


def _read(item: Any) -> FirstPod:
    none: Any = {}
    status: Any = item.get("status") or none
    containers: list[Any] = status.get("containerStatuses") or []
    conditions: list[Any] = status.get("conditions") or []
    states: list[Any] = [container.get("state") or none for container in containers]
    ended: Any = next((state["terminated"] for state in states if state.get("terminated")), none)
    waiting: Any = next((state["waiting"] for state in states if state.get("waiting")), none)
    unscheduled: Any = next((each for each in conditions if each.get("reason") == "Unschedulable"), none)
    known: list[Any] = [each for each in (status, ended, waiting, unscheduled) if each.get("reason")]
    reason, message = (str(known[0]["reason"]), str(known[0].get("message") or "")) if known else ("", "")
    code: Any = ended.get("exitCode")
    return FirstPod(
        name=str(item["metadata"]["name"]),
        phase=str(status.get("phase") or "Unknown"),
        reason=printable(f"{reason}: {message}" if message else reason)[:300] if reason != "Completed" else "",
        exit_code=code if isinstance(code, int) else None,
        last_words=printable(str(ended.get("message") or ""))[:1000],
    )
