"""A stand-in for a Kubernetes cluster on lab hosts, good enough for the real kubectl, since no cluster runs in CI.

    with KubeCluster(lab, folder, nodes=("h2", "h3"), gpus=8) as cluster:
        cluster.add_pod("train-0", labels={"app": "train"})
        cluster.kubectl("exec", "train-0", "--", "hostname")
        cluster.kill_api_server()

It has an API server (discovery, get, list, watch, create, merge patches, delete, exec over WebSocket, logs, evictions,
access reviews), a scheduler that gives each node one pod, kubelets, and a controller of Indexed Jobs. A pod is a lab
host; a container has a PID namespace, a hostname and a /dev/shm of 64 MB of its own, and its command is process 1.

What it copies was seen on Kubernetes 1.33.13 and 1.35.8: kubectl's exit codes and messages; that a client which goes
away is an end of stdin and no signal; that exec ends only when all who hold its output have closed it; that a restarted
kubelet or containerd ends kubectl with 0, and containerd without an end of stdin; that a cut node is only silent; that
SIGTERM reaches process 1 alone; where OOMKilled, Evicted, DisruptionTarget, ErrImagePull and Unschedulable are written;
that one failed pod of a Job deletes the others with their logs unless failures count per index; and that from 1.35 on
an exec over WebSocket needs the verb create (`cluster.api.exec_verb`).

What it does not copy: SPDY, hence `kubectl exec` before 1.31; the schemas that `kubectl create` before 1.27 downloads;
port-forward, attach and cp; terminals; DNS (names of pods are in /etc/hosts); TLS and users; Services with addresses of
their own; StatefulSets, Deployments and the controller of JobSet; retries of a Job's pods; limits of CPU and memory.
"""

from __future__ import annotations

from kube.cluster import KubeCluster

__all__ = ["KubeCluster"]
