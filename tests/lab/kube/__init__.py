"""A stand-in for a Kubernetes cluster on lab hosts, good enough for the real kubectl."""

from __future__ import annotations

from kube.cluster import KubeCluster

__all__ = ["KubeCluster"]
