"""Pods on lab hosts: what a scheduler and the kubelets do, and what can happen to a pod."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kube import pod_status
from kube.container import Container
from kube.container_spec import ConfigMissing, container_spec
from kube.exec_stream import ExecStream
from kube.http_server import Json
from kube.objects import Objects, Selection, now
from muster.lab import Lab

RESTART_DELAY = 0.5
"""Seconds before a container with restartPolicy Always runs again."""


@dataclass(eq=False)
class Node:
    """A lab host as a node with room for one pod."""

    host: str
    name: str
    gpus: int
    pod: tuple[str, str] | None = None
    """Namespace and name of the pod on it."""
    is_cut: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class RunningPod:
    """The processes of a pod."""

    node: Node
    containers: dict[str, Container] = field(default_factory=dict[str, Container])
    execs: set[ExecStream] = field(default_factory=set[ExecStream])
    killed_as: str = ""
    """The reason that its containers will get when they end, as OOMKilled."""


@dataclass
class Pods:
    """All pods of the cluster."""

    lab: Lab
    objects: Objects
    nodes: Sequence[Node]
    base_env: Mapping[str, str]
    missing_images: set[str] = field(default_factory=set[str])
    running: dict[tuple[str, str], RunningPod] = field(default_factory=dict[tuple[str, str], RunningPod])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _closing: bool = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something in the background; it lives until it ends or the cluster is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End all containers."""
        self._closing = True
        left = list(self.running.values())
        for pod in left:
            for container in pod.containers.values():
                container.signal(signal.SIGKILL)
        for pod in left:
            await self._ended(pod, 10)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- scheduling and starting --------------------------------------------------------------------------

    async def schedule(self) -> None:
        """Give waiting pods to nodes with room, in the order in which they were created."""
        waiting = [pod for pod in self.objects.select(Selection(resource="pods")) if "nodeName" not in pod["spec"]]
        for pod in sorted(waiting, key=lambda pod: int(pod["metadata"]["resourceVersion"])):
            if not pod["metadata"].get("deletionTimestamp"):
                await self._place(*_names(pod), need=pod_status.requested_gpus(pod))

    async def _place(self, namespace: str, name: str, *, need: int) -> None:
        """Give a pod to the first node with room, or say why there is none."""
        free = [node for node in self.nodes if node.pod is None and not node.is_cut.is_set() and node.gpus >= need]
        if not free:
            await self._update(namespace, name, lambda pod: pod_status.set_unschedulable(pod, self._why(need)))
            return
        node = free[0]
        node.pod = (namespace, name)
        await self._update(namespace, name, lambda pod: pod_status.set_scheduled(pod, node.name))
        self.spawn(self._start(namespace, name, node))

    def _why(self, need: int) -> str:
        lacking = "Insufficient nvidia.com/gpu" if need else "Too many pods"
        number = len(self.nodes)
        return (
            f"0/{number} nodes are available: {number} {lacking}. preemption: 0/{number} nodes are available: "
            f"{number} No preemption victims found for incoming pod."
        )

    async def _start(self, namespace: str, name: str, node: Node) -> None:
        pod = self.objects.get("pods", namespace, name)
        assert pod is not None
        while missing := self._missing_image(pod):
            await self._alternate_pull_errors(namespace, name, missing)
            if self.objects.get("pods", namespace, name) is None:
                return
        running = RunningPod(node)
        self.running[namespace, name] = running
        try:
            for one in pod["spec"]["containers"]:
                running.containers[one["name"]] = await self._start_container(pod, one, node)
        except ConfigMissing as missing:
            text = str(missing)
            await self._update(
                namespace, name, lambda pod: pod_status.set_waiting(pod, "CreateContainerConfigError", text)
            )
            return
        self._write_names(pod, self.lab.address(node.host))
        await self._update(namespace, name, lambda pod: pod_status.set_running(pod, self.lab.address(node.host)))
        for container in running.containers.values():
            self.spawn(self._watch_container(namespace, name, running, container))

    def _missing_image(self, pod: Json) -> str:
        images: Iterable[str] = (one.get("image", "") for one in pod["spec"]["containers"])
        return next((image for image in images if image in self.missing_images), "")

    async def _alternate_pull_errors(self, namespace: str, name: str, image: str) -> None:
        pulling = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": not found'
        backing_off = f'Back-off pulling image "{image}": ErrImagePull: {pulling}'
        await self._update(namespace, name, lambda pod: pod_status.set_waiting(pod, "ErrImagePull", pulling))
        await asyncio.sleep(0.5)
        await self._update(namespace, name, lambda pod: pod_status.set_waiting(pod, "ImagePullBackOff", backing_off))
        await asyncio.sleep(0.5)

    async def _start_container(self, pod: Json, one: Json, node: Node) -> Container:
        namespace, _ = _names(pod)
        pod["status"]["podIP"] = self.lab.address(node.host)
        spec = container_spec(pod, one, self.base_env, lambda kind, name: self.objects.get(kind, namespace, name))
        container = Container(self.lab, node.host, spec)
        await container.start()
        return container

    def _write_names(self, pod: Json, address: str) -> None:
        """Put its names where all hosts look names up: a pod knows its own, a headless Service announces others."""
        namespace, name = _names(pod)
        hostname, subdomain = pod["spec"].get("hostname", name), pod["spec"].get("subdomain", "")
        names = [hostname]
        if subdomain:
            short = f"{hostname}.{subdomain}"
            names = [f"{short}.{namespace}.svc.cluster.local", f"{short}.{namespace}.svc", short, hostname]
        for host in self.lab.names:
            if self.lab._up().running(host):
                path = Path(f"/proc/{self.lab._up().init(host)}/root/etc/hosts")
                kept = [line for line in path.read_text().splitlines() if names[0] not in line.split()]
                path.write_text("\n".join([*kept, f"{address} {' '.join(names)}", ""]))

    async def _watch_container(self, namespace: str, name: str, running: RunningPod, container: Container) -> None:
        code = await container.run()
        while running.node.is_cut.is_set():  # nobody hears of it
            await asyncio.sleep(0.1)
        reason, running.killed_as = running.killed_as, ""
        reason = reason or ("Error" if code else "Completed")
        pod = await self._update(
            namespace, name, lambda pod: pod_status.set_terminated(pod, container.spec.name, code, reason)
        )
        if (
            self._closing
            or pod is None
            or pod["metadata"].get("deletionTimestamp")
            or pod["status"].get("reason") == "Evicted"
        ):
            return
        if pod["spec"].get("restartPolicy", "Always") == "Always":
            await asyncio.sleep(RESTART_DELAY)
            if self.objects.get("pods", namespace, name):
                await self._start(namespace, name, running.node)
        elif all(one.exit_code is not None for one in running.containers.values()):
            await self._update(namespace, name, pod_status.set_finished)
            await self._release(running.node)

    async def _release(self, node: Node) -> None:
        node.pod = None
        await self.schedule()

    async def _update(self, namespace: str, name: str, change: Callable[[Json], None]) -> Json | None:
        return await self.objects.update("pods", namespace, name, change)

    # --- ends ---------------------------------------------------------------------------------------------

    async def delete(self, namespace: str, name: str, grace: float | None = None) -> None:
        """Begin to delete a pod: SIGTERM to process 1 of each container, SIGKILL after the grace period."""
        pod = self.objects.get("pods", namespace, name)
        if pod is None or (pod["metadata"].get("deletionTimestamp") and grace != 0):
            return
        if grace is None:
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)

        def mark(pod: Json) -> None:
            pod["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}

        await self._update(namespace, name, mark)
        running = self.running.get((namespace, name))
        if grace == 0 or running is None or running.node.pod != (namespace, name):
            await self._remove(namespace, name)
        if running:
            self.spawn(self._terminate(namespace, name, running, grace or 2))

    async def _terminate(self, namespace: str, name: str, running: RunningPod, grace: float) -> None:
        while running.node.is_cut.is_set():
            await asyncio.sleep(0.1)
        for container in running.containers.values():
            container.signal(signal.SIGTERM)
        await self._ended(running, grace)
        for container in running.containers.values():
            container.signal(signal.SIGKILL)
        await self._ended(running, 30)
        await self._remove(namespace, name)

    async def _ended(self, running: RunningPod, limit: float) -> None:
        deadline = asyncio.get_running_loop().time() + limit
        while running.execs or any(one.exit_code is None for one in running.containers.values()):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.05)

    async def _remove(self, namespace: str, name: str) -> None:
        await self.objects.delete("pods", namespace, name)
        running = self.running.pop((namespace, name), None)
        node = next((node for node in self.nodes if node.pod == (namespace, name)), None)
        if node and (running is None or all(one.exit_code is not None for one in running.containers.values())):
            await self._release(node)
        elif node and running:
            self.spawn(self._release_later(node, running))

    async def _release_later(self, node: Node, running: RunningPod) -> None:
        await self._ended(running, 60)
        await self._release(node)

    async def disrupt(self, namespace: str, name: str, reason: str, message: str) -> None:
        """Announce why a pod goes away, then delete it with its grace period."""
        await self._update(
            namespace, name, lambda pod: pod_status.set_condition(pod, "DisruptionTarget", True, reason, message)
        )
        await self.delete(namespace, name)

    async def evict_by_kubelet(self, namespace: str, name: str, message: str) -> None:
        """Fail a pod because of what it used; its object stays."""
        await self._update(namespace, name, lambda pod: pod_status.set_evicted(pod, message))
        running = self.running[namespace, name]
        for container in running.containers.values():
            container.signal(signal.SIGKILL)
        await self._ended(running, 30)
        await self._release(running.node)

    def kill_for_memory(self, namespace: str, name: str) -> None:
        """Let the kernel kill its containers, as with cgroup v2 when one process needs too much."""
        running = self.running[namespace, name]
        running.killed_as = "OOMKilled"
        for container in running.containers.values():
            container.signal(signal.SIGKILL)


def _names(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]
