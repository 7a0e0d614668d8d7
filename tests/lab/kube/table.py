"""Lists as tables, which is what `kubectl get` without `-o` asks for.  Pure."""

from __future__ import annotations

from kube.http_server import Json, Request


def is_wanted(request: Request) -> bool:
    """Whether the client prefers a table."""
    return "as=Table" in request.headers.get("accept", "").split(",")[0]


def table(items: list[Json], metadata: Json) -> Json:
    """A table of names and states."""
    columns = [{"name": name, "type": "string"} for name in ("Name", "Ready", "Status", "Restarts")]
    for column in columns[:1]:
        column["format"] = "name"
    rows = [
        {
            "cells": _cells(one),
            "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": one["metadata"]},
        }
        for one in items
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    }


def _cells(one: Json) -> list[str]:
    status: Json = one.get("status", {})
    containers: list[Json] = status.get("containerStatuses", [])
    ready = sum(container["ready"] for container in containers)
    state = status.get("reason") or status.get("phase", "")
    for container in containers:
        for kind in ("waiting", "terminated"):
            state = container["state"].get(kind, {}).get("reason", state)
    if one["metadata"].get("deletionTimestamp"):
        state = "Terminating"
    restarts = sum(container["restartCount"] for container in containers)
    return [one["metadata"]["name"], f"{ready}/{len(containers)}", state, str(restarts)]
