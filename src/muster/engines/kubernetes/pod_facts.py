"""What the API server says about the pods of a job, for `muster check`: permissions and requested GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from muster.engines.kubernetes.pod_reasons import Json, part, parts

NEEDED = (
    ("get", "pods", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("create", "pods", "exec"),
    ("get", "pods", "exec"),
)
"""The permissions that Muster uses: verb, resource and subresource."""

_GPU = re.compile(r".+/(?:gpu|mig-[\w.-]+)|gpu\..+/.+")
"""Names of extended resources that are GPUs: nvidia.com/gpu, nvidia.com/mig-1g.5gb, amd.com/gpu, gpu.intel.com/i915."""


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """The answers of the API server."""

    namespace: str
    denied: tuple[tuple[str, str, str], ...]
    """Those of NEEDED that the user lacks."""
    gpus: Mapping[str, int]
    """How many GPUs the container of each host has requested."""


def review(verb: str, resource: str, subresource: str, namespace: str) -> dict[str, object]:
    """The question whether the user has a permission.

    `kubectl auth can-i create pods/exec` would answer no, because it reads that as a pod with the name exec.
    """
    attributes = {"namespace": namespace, "verb": verb, "resource": resource, "subresource": subresource}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
"""Where to ask it."""


def gpus_requested(pod: Json, container: str) -> int:
    """How many GPUs a container has requested."""
    found = next((each for each in parts(pod, "spec", "containers") if each.get("name") == container), None)
    limits = part(found, "resources", "limits")
    return sum(int(value) for name, value in limits.items() if _GPU.fullmatch(name) and str(value).isdigit())
