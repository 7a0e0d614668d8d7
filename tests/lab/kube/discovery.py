"""What the API offers: the resources, and the documents by which kubectl learns of them.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kube.http_server import Json

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A kind of object."""

    name: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS

    @property
    def api_version(self) -> str:
        """As in manifests: `batch/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """Where its paths begin: `/apis/batch/v1`."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"


REVIEWS = "authorization.k8s.io"

RESOURCES = (
    Resource(name="pods", kind="Pod", short=("po",), subresources=("exec", "log", "eviction", "attach")),
    Resource(name="services", kind="Service", short=("svc",)),
    Resource(name="secrets", kind="Secret"),
    Resource(name="configmaps", kind="ConfigMap", short=("cm",)),
    Resource(name="serviceaccounts", kind="ServiceAccount", short=("sa",)),
    Resource(name="events", kind="Event", short=("ev",)),
    Resource(name="namespaces", kind="Namespace", namespaced=False, short=("ns",)),
    Resource(name="nodes", kind="Node", namespaced=False, short=("no",)),
    Resource(name="jobs", kind="Job", group="batch"),
    Resource(
        name="selfsubjectaccessreviews",
        kind="SelfSubjectAccessReview",
        group=REVIEWS,
        namespaced=False,
        verbs=("create",),
    ),
)

JOBSETS = Resource(name="jobsets", kind="JobSet", group="jobset.x-k8s.io", version="v1alpha2")
"""Offered only by a cluster with that CRD."""


def document(path: str, resources: tuple[Resource, ...]) -> Json | None:
    """The discovery document at a path, if there is one."""
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.13-standin", "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    groups = {one.group: _group(one) for one in resources if one.group}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())}
    if path.startswith("/apis/") and path.removeprefix("/apis/") in groups:
        return {"kind": "APIGroup", "apiVersion": "v1", **groups[path.removeprefix("/apis/")]}
    if path == "/openapi/v3":
        return {"paths": {one.prefix[1:]: {"serverRelativeURL": f"/openapi/v3{one.prefix}"} for one in resources}}
    of_schema = [one for one in resources if path == f"/openapi/v3{one.prefix}"]
    if of_schema:
        return _schema(of_schema)
    of_prefix = [one for one in resources if path == one.prefix]
    return _resource_list(of_prefix) if of_prefix else None


def _group(one: Resource) -> Json:
    version = {"groupVersion": one.api_version, "version": one.version}
    return {"name": one.group, "versions": [version], "preferredVersion": version}


def _resource_list(resources: list[Resource]) -> Json:
    entries: list[Json] = []
    for one in resources:
        entry: Json = {"name": one.name, "singularName": one.kind.lower(), "namespaced": one.namespaced}
        entries.append({**entry, "kind": one.kind, "verbs": list(one.verbs), "shortNames": list(one.short)})
        for sub in one.subresources:
            verbs = ["get"] if sub == "log" else ["create", "get"]
            entries.append({**entry, "name": f"{one.name}/{sub}", "kind": one.kind, "verbs": verbs})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": resources[0].api_version,
        "resources": entries,
    }


def _schema(resources: list[Resource]) -> Json:
    """As much of the schema as kubectl reads before `create`: that the server checks fields by itself."""
    paths: Json = {}
    for one in resources:
        kind = {"group": one.group, "version": one.version, "kind": one.kind}
        parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun")]
        operation: Json = {"x-kubernetes-group-version-kind": kind, "parameters": parameters, "responses": {}}
        scope = "/namespaces/{namespace}" if one.namespaced else ""
        paths[f"{one.prefix}{scope}/{one.name}/{{name}}"] = {"patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1"}, "paths": paths, "components": {}}
