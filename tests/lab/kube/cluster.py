"""The stand-in cluster as a test uses it."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from waiting import patience, wait_until

from kube import discovery, pod_status
from kube.api import Api
from kube.http_server import HttpServer, Json
from kube.jobs import Jobs
from kube.objects import Objects
from kube.pods import Node, Pods
from muster.lab import Lab

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
DEFAULT = "default"

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: stand-in
clusters: [{{name: stand-in, cluster: {{server: "http://{address}:{port}"}}}}]
contexts: [{{name: stand-in, context: {{cluster: stand-in, user: tester, namespace: default}}}}]
users: [{{name: tester, user: {{}}}}]
"""


class KubeCluster:
    """A Kubernetes API over the hosts of a lab, from `with` to its end; see the package for what it copies.

    >>> with KubeCluster(lab, folder, nodes=("h2", "h3")) as cluster:
    ...     cluster.add_pod("train-0", labels={"app": "train"})
    ...     cluster.kubectl("exec", "train-0", "--", "hostname").stdout
    'train-0\\n'

    The API server listens in the network of `server_host`, where `muster run` and kubectl run too, with
    `KUBECONFIG=cluster.kubeconfig`; `cluster.env` has what they need. Each of the `nodes` has room for one pod.
    """

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        *,
        nodes: Sequence[str] = (),
        server_host: str = "h1",
        gpus: int = 0,
        jobset: bool = False,
        path: str = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
    ) -> None:
        self.lab = lab
        self.server_host = server_host
        self.kubeconfig = folder / "kubeconfig"
        self._home = folder / "home"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kube", daemon=True)
        names = nodes or [name for name in lab.names if name != server_host]
        self._nodes = [Node(host=host, name=f"node-{host}", gpus=gpus) for host in names]
        self.objects = Objects()
        self._port = 0
        base_env = {"PATH": path, "KUBERNETES_SERVICE_HOST": lab.address(server_host), "KUBERNETES_SERVICE_PORT": "443"}
        self.pods = Pods(lab, self.objects, self._nodes, base_env)
        extra = (discovery.JOBSETS,) if jobset else ()
        self.api = Api(self.objects, self.pods, (*discovery.RESOURCES, *extra))
        self.jobs = Jobs(self.objects, self.pods)
        self._server = HttpServer(self.api.handle)

    def __enter__(self) -> KubeCluster:
        self._home.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self.start_api_server()
        address = self.lab.address(self.server_host)
        self.kubeconfig.write_text(KUBECONFIG.format(address=address, port=self._port))
        self.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _open(self) -> None:
        async def schedule(_: Json) -> None:
            await self.pods.schedule()

        self.api.on_create |= {"pods": schedule, "jobs": self.jobs.created}
        self.api.on_delete |= {"jobs": self.jobs.deleted}
        await self.objects.create("namespaces", _named("Namespace", DEFAULT))
        for node in self._nodes:
            await self.objects.create("nodes", pod_status.node_document(node.name, gpus=node.gpus))
        self.pods.spawn(self.jobs.run())

    async def _close(self) -> None:
        self._server.kill()
        await self.pods.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the cluster's event loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patience(60))

    # --- the API server -----------------------------------------------------------------------------------

    def start_api_server(self) -> None:
        """Start it, again on the port it had."""
        listening = socket_in(self.lab._up().init(self.server_host), self._port)
        self._port = listening.getsockname()[1]
        self.call(self._server.start(listening))

    def kill_api_server(self) -> None:
        """End it as SIGKILL does: connections break, pods and what execs started live on."""

        async def kill() -> None:
            self._server.kill()

        self.call(kill())

    @property
    def env(self) -> Mapping[str, str]:
        """The variables with which kubectl finds this cluster."""
        return {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._home / "cache")}

    def kubectl(self, *argv: str, timeout: float = 60, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl beside the API server."""
        with self.lab.popen(
            self.server_host,
            ["kubectl", *argv],
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                out, err = process.communicate(input, patience(timeout))
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    @property
    def kubectl_minor(self) -> int:
        """The version of kubectl: 33 for v1.33.1. The stand-in serves `exec` and `create` of 1.31 and newer."""
        version: Json = json.loads(self.kubectl("version", "--client", "-o", "json").stdout)
        return int(version["clientVersion"]["minor"].rstrip("+"))

    # --- pods ---------------------------------------------------------------------------------------------

    def create(self, resource: str, document: Json, *, namespace: str = DEFAULT) -> Json:
        """Create an object as `kubectl create` does."""

        async def create() -> Json:
            document.setdefault("metadata", {})["namespace"] = namespace
            created = await self.objects.create(resource, document)
            if resource in self.api.on_create:
                await self.api.on_create[resource](created)
            return created

        return self.call(create())

    def add_pod(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        namespace: str = DEFAULT,
        command: Sequence[str] = ("sleep", "infinity"),
        containers: Sequence[str] = ("main",),
        gpus: int = 0,
        image: str = "registry.example/train:1",
        security: Mapping[str, Any] | None = None,
        restart: str = "Always",
        wait: bool = True,
        **spec: Any,
    ) -> None:
        """Add a pod; with `wait`, until it runs. `security` is a securityContext, `spec` more fields of its spec."""
        limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
        document = _named("Pod", name)
        document["metadata"]["labels"] = dict(labels or {})
        document["spec"] = {
            "containers": [
                {
                    "name": one,
                    "image": image,
                    "command": list(command),
                    "resources": limits,
                    "securityContext": dict(security or {}),
                }
                for one in containers
            ],
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 30,
            **spec,
        }
        document["status"] = {"phase": "Pending"}
        self.create("pods", document, namespace=namespace)
        if wait:
            self.wait_for_phase(name, "Running", namespace=namespace)

    def pod(self, name: str, *, namespace: str = DEFAULT) -> Json | None:
        """A pod's document, if it exists."""

        async def get() -> Json | None:
            return self.objects.get("pods", namespace, name)

        return self.call(get())

    def wait_for_phase(self, name: str, phase: str, *, namespace: str = DEFAULT) -> Json:
        """Wait until a pod is in a phase."""

        def found() -> Json | None:
            pod = self.pod(name, namespace=namespace)
            return pod if pod and pod["status"].get("phase") == phase else None

        return wait_until(f"pod {name} to be {phase}", found, said=lambda: str(self.pod(name, namespace=namespace)))

    def wait_until_gone(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Wait until a pod's object is gone."""
        wait_until(f"pod {name} to be gone", lambda: self.pod(name, namespace=namespace) is None)

    def host_of(self, name: str, *, namespace: str = DEFAULT) -> str:
        """The lab host that a pod runs on."""
        return self._node_of(name, namespace).host

    def _node_of(self, name: str, namespace: str) -> Node:
        return self.pods.running[namespace, name].node

    # --- what can happen ----------------------------------------------------------------------------------

    def delete_pod(self, name: str, *, grace: float | None = None, namespace: str = DEFAULT) -> None:
        """`kubectl delete pod --wait=false`."""
        self.call(self.pods.delete(namespace, name, grace))

    def evict(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Evict it through the API, as `kubectl drain` does."""
        self.call(self.pods.disrupt(namespace, name, "EvictionByEvictionAPI", "Eviction API: evicting"))

    def preempt(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Delete it for the sake of a pod with a higher priority."""
        message = "default-scheduler: preempting to accommodate a higher priority pod"
        self.call(self.pods.disrupt(namespace, name, "PreemptionByScheduler", message))

    def evict_by_kubelet(
        self,
        name: str,
        message: str = 'Usage of EmptyDir volume "s" exceeds the limit "10Mi". ',
        *,
        namespace: str = DEFAULT,
    ) -> None:
        """Let its kubelet evict it: Failed, reason Evicted."""
        self.call(self.pods.evict_by_kubelet(namespace, name, message))

    def oom_kill(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Let its containers run out of memory: OOMKilled, 137."""

        async def kill() -> None:
            self.pods.kill_for_memory(namespace, name)

        self.call(kill())

    def cut_node(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Cut the cable of a pod's node: its streams fall silent. The API shows nothing until `report_lost_node`."""
        node = self._node_of(name, namespace)
        self.lab.cut(node.host)
        self._loop.call_soon_threadsafe(node.is_cut.set)

    def heal_node(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Plug it in again."""
        node = self._node_of(name, namespace)
        self.lab.heal(node.host)
        self._loop.call_soon_threadsafe(node.is_cut.clear)
        self.call(self._set_node_ready(node, True))

    def report_lost_node(self, name: str, *, namespace: str = DEFAULT, deletes: bool = False) -> None:
        """What controllers write 47 s after a node fell silent (NotReady) and, with `deletes`, after 352 s."""
        node = self._node_of(name, namespace)
        self.call(self._set_node_ready(node, False))
        if deletes:
            message = "Taint manager: deleting due to NoExecute taint"
            self.call(self.pods.disrupt(namespace, name, "DeletionByTaintManager", message))

    async def _set_node_ready(self, node: Node, ready: bool) -> None:
        def change(found: Json) -> None:
            if ready:
                pod_status.set_condition(found, "Ready", True, "KubeletReady")
            else:
                pod_status.set_condition(
                    found, "Ready", False, "NodeStatusUnknown", "Kubelet stopped posting node status."
                )

        def mark(pod: Json) -> None:
            pod_status.set_condition(pod, "Ready", ready)

        await self.objects.update("nodes", "", node.name, change)
        if node.pod:
            await self.objects.update("pods", *node.pod, mark)

    def restart_kubelet(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Restart the kubelet of a pod's node: its execs end with 0 and no message, and their stdin closes."""
        self._drop_execs(name, namespace, closes_stdin=True)

    def restart_containerd(self, name: str, *, namespace: str = DEFAULT) -> None:
        """Restart the containerd of a pod's node: its execs end with 0, and their commands notice nothing."""
        self._drop_execs(name, namespace, closes_stdin=False)

    def _drop_execs(self, name: str, namespace: str, *, closes_stdin: bool) -> None:
        async def drop() -> None:
            for stream in list(self.pods.running[namespace, name].execs):
                await stream.drop(closes_stdin=closes_stdin)

        self.call(drop())

    def deny(self, verb: str, resource: str) -> None:
        """Take a permission away: `deny("get", "pods/exec")`, `deny("*", "nodes")`."""
        self.api.denied.add((verb, resource))

    def allow(self, verb: str, resource: str) -> None:
        """Give it back."""
        self.api.denied.discard((verb, resource))


def _named(kind: str, name: str) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


def socket_in(pid: int, port: int) -> socket.socket:
    """A listening socket in the network of another process."""
    made: list[socket.socket | BaseException] = []

    def make() -> None:  # in a thread of its own: setns changes the network of the thread that calls it
        try:
            with open(f"/proc/{pid}/ns/net") as network:
                if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server(("", port), backlog=128))
        except BaseException as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], BaseException):
        raise made[0]
    return made[0]
