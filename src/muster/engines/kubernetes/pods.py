"""The pods of a job: which ones a selector or names mean, in which order, and which container of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.engines.kubernetes.kubectl import ask_json, current_namespace, where_options
from muster.engines.kubernetes.pod_reasons import (
    Json,
    is_leaving,
    is_over,
    is_running,
    name_of,
    part,
    parts,
    why_ended,
)
from muster.errors import HostError, MusterError, UsageError
from muster.text import names

_INDEX = "batch.kubernetes.io/job-completion-index"
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod that a job runs in."""

    name: str
    namespace: str
    container: str
    node: str = ""
    """Empty if it is not scheduled yet."""
    label: str = ""
    """The name to show."""
    selector: str = ""
    """The labels by which it was found; empty if by its name."""
    is_running: bool = False
    """Whether its container ran when it was found."""
    context: str = ""
    """The context of kubectl in which it was found; empty inside a cluster."""

    def exec_argv(self, *options: str) -> tuple[str, ...]:
        """The command line that runs what follows it in this pod."""
        where = where_options(self.context, self.namespace)
        return ("kubectl", "exec", *options, *where, self.name, "-c", self.container, "--")


def find_pods(
    selector: str | None, chosen: Sequence[str], namespace: str | None, container: str | None, context: str = ""
) -> list[Pod]:
    """The pods with these labels, or with the names in `chosen`; asks the API server once."""
    where = where_options(context, namespace)
    which = ("-l", selector) if selector is not None else ("--ignore-not-found", *chosen)
    answer = ask_json("get", "pods", *where, *which)
    # One name gives a pod, several give a list, and a name that does not exist gives nothing.
    items = parts(answer, "items") if "items" in answer or not answer else [answer]
    if namespace is None:  # needed for errors only
        namespace = current_namespace(context) if len(items) < max(1, len(chosen)) else ""
    if selector is not None:
        found = read_selected(items, selector, namespace, container)
    else:
        found = read_named(items, chosen, namespace, container)
    return [replace(pod, context=context) for pod in found]


def read_selected(items: Sequence[Json], selector: str, namespace: str, container: str | None) -> list[Pod]:
    """The pods that a selector means: those that run or will run, in the order of the numbers in their names."""
    usable = [pod for pod in items if not is_over(pod) and not is_leaving(pod)]
    if not items:
        raise MusterError(
            f"no pod matches --pods {selector} in namespace {namespace}",
            hint=f"`kubectl get pods -n {namespace} --show-labels` shows the labels of all",
        )
    if not usable:
        first = items[0]
        why = why_ended(first, container or _default_container(first))
        raise MusterError(
            f"all pods that match --pods {selector} have ended: {name_of(first)}, {why.what if why else ''}",
            hint="Muster runs in pods that keep running, such as those with the command `sleep infinity`",
        )
    usable.sort(key=lambda pod: _natural(name_of(pod)))
    return _labeled([read_pod(pod, container, selector) for pod in usable], usable)


def read_named(items: Sequence[Json], chosen: Sequence[str], namespace: str, container: str | None) -> list[Pod]:
    """The pods with these names, in this order."""
    found = {name_of(pod): pod for pod in items}
    missing = [name for name in chosen if name not in found]
    if missing:
        raise MusterError(
            f"no pod named {names(missing)} in namespace {namespace}",
            hint=f"`kubectl get pods -n {namespace}` lists them; choose another namespace with -n",
        )
    for name in chosen:
        if is_over(found[name]):
            reason = why_ended(found[name], container or _default_container(found[name]))
            hint = reason.hint if reason else ""
            raise HostError(name, reason.what if reason else "its pod has ended", hint=hint or f"`kubectl logs {name}`")
    return [read_pod(found[name], container) for name in chosen]


def read_pod(pod: Json, container: str | None, selector: str = "") -> Pod:
    """One pod, with the container of this name or kubectl's default; UsageError if there is no such container."""
    name = name_of(pod)
    kinds = ("containers", "initContainers", "ephemeralContainers")
    known = [str(each["name"]) for kind in kinds for each in parts(pod, "spec", kind)]
    if container is not None and container not in known:
        raise UsageError(f"-c {container}: pod {name} has no such container", hint=f"it has {names(known)}")
    chosen = container or _default_container(pod)
    return Pod(
        name=name,
        namespace=str(part(pod, "metadata").get("namespace") or "default"),
        container=chosen,
        selector=selector,
        is_running=is_running(pod, chosen),
        node=str(part(pod, "spec").get("nodeName") or ""),
        label=name,
    )


def _default_container(pod: Json) -> str:
    """The container that kubectl would choose."""
    chosen = str(part(pod, "metadata", "annotations").get(_DEFAULT_CONTAINER))
    known = [str(each["name"]) for each in parts(pod, "spec", "containers")]
    return chosen if chosen in known else known[0]


def _labeled(pods: list[Pod], items: Sequence[Json]) -> list[Pod]:
    """The pods with short names: those of an Indexed Job without the random end, where that is unambiguous."""
    short = [
        pod.name.rpartition("-")[0] if _INDEX in part(item, "metadata", "labels") else pod.name
        for pod, item in zip(pods, items, strict=True)
    ]
    often = Counter(short)
    return [
        replace(pod, label=label if often[label] == 1 else pod.name) for pod, label in zip(pods, short, strict=True)
    ]


def _natural(name: str) -> list[tuple[int, int | str]]:
    """A sort key that puts train-2 before train-10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"\d+|\D+", name)]
