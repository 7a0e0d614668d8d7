"""The API server: requests for objects, their lists and watches, logs, exec and access reviews."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kube import discovery, table
from kube.discovery import Resource
from kube.errors import ApiError
from kube.exec_stream import ExecStream, not_found_status
from kube.http_server import Connection, Json, Request
from kube.objects import Objects, Selection
from kube.pods import Pods, RunningPod
from kube.protobuf import MAGIC, access_review
from kube.websocket import ERROR, WebSocket

USER = "tester"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a path names."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    sub: str = ""


@dataclass
class Api:
    """Answers requests from the objects and the pods."""

    objects: Objects
    pods: Pods
    resources: tuple[Resource, ...]
    exec_verb: str = "get"
    """The permission that an exec over WebSocket needs: `get` up to 1.34, `create` from 1.35 on."""
    denied: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Verbs and resources (`pods`, `pods/exec`) that the user may not use; `*` stands for all verbs."""
    on_create: dict[str, Callable[[Json], Awaitable[None]]] = field(
        default_factory=dict[str, Callable[[Json], Awaitable[None]]]
    )
    on_delete: dict[str, Callable[[str, str], Awaitable[None]]] = field(
        default_factory=dict[str, Callable[[str, str], Awaitable[None]]]
    )
    requests: list[str] = field(default_factory=list[str])
    """Method and path of every request, for tests that count them."""

    async def handle(self, connection: Connection) -> None:
        """Answer a request."""
        request = connection.request
        self.requests.append(f"{request.method} {request.path}")
        try:
            if request.path in ("/healthz", "/readyz", "/livez"):
                await connection.reply(200, {"status": "ok"})
            elif found := discovery.document(request.path, self.resources):
                await connection.reply(200, found)
            else:
                await self._handle(connection, self._target(request.path))
        except ApiError as error:
            await connection.reply(error.code, error.document())

    def _target(self, path: str) -> Target:
        for one in self.resources:
            if not path.startswith(f"{one.prefix}/"):
                continue
            parts = path.removeprefix(f"{one.prefix}/").strip("/").split("/")
            namespace = ""
            if one.namespaced and parts[0] == "namespaces" and len(parts) > 2:
                namespace, parts = parts[1], parts[2:]
            if parts[0] == one.name and len(parts) <= 3:
                name, sub = (*parts[1:], "", "")[:2]
                return Target(resource=one, namespace=namespace, name=name, sub=sub)
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    async def _handle(self, connection: Connection, target: Target) -> None:
        request = connection.request
        verb = self._verb(request, target)
        self._authorize(verb, target)
        if target.resource.group == discovery.REVIEWS:
            await connection.reply(201, self._review(_review_in(request)))
        elif target.sub == "exec":
            await self._exec(connection, target)
        elif target.sub == "log":
            await self._log(connection, target)
        elif target.sub == "eviction":
            await self.pods.disrupt(target.namespace, target.name, "EvictionByEvictionAPI", "Eviction API: evicting")
            await connection.reply(201, _success())
        elif verb == "watch":
            await self._watch(connection, self._selection(request, target))
        elif verb == "list":
            await connection.reply(200, self._list(request, target))
        elif verb == "create":
            await connection.reply(201, await self._create(request, target))
        else:
            await connection.reply(200, await self._on_object(verb, request, target))

    def _verb(self, request: Request, target: Target) -> str:
        if target.sub == "exec":
            return self.exec_verb if "websocket" in request.headers.get("upgrade", "").lower() else "create"
        if request.method == "GET":
            if target.name:
                return "get"
            return "watch" if request.flag("watch") else "list"
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]

    # --- permissions --------------------------------------------------------------------------------------

    def _allowed(self, verb: str, resource: str) -> bool:
        return not self.denied & {(verb, resource), ("*", resource)}

    def _authorize(self, verb: str, target: Target) -> None:
        resource = f"{target.resource.name}/{target.sub}" if target.sub else target.resource.name
        if self._allowed(verb, resource):
            return
        named = f'{target.resource.name} "{target.name}"' if target.name else target.resource.name
        scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        raise ApiError(
            403,
            "Forbidden",
            f'{named} is forbidden: User "{USER}" cannot {verb} resource "{resource}" in API group '
            f'"{target.resource.group}" {scope}',
        )

    def _review(self, review: Json) -> Json:
        asked: Json = review["spec"].get("resourceAttributes", {})
        sub = asked.get("subresource", "")
        resource = f"{asked.get('resource')}/{sub}" if sub else asked.get("resource", "")
        allowed = self._allowed(asked.get("verb", ""), resource)
        return {**review, "status": {"allowed": allowed, "reason": "" if allowed else "no rule of this user allows it"}}

    # --- objects ------------------------------------------------------------------------------------------

    def _selection(self, request: Request, target: Target) -> Selection:
        fields = request.one("fieldSelector") or (f"metadata.name={target.name}" if target.name else "")
        return Selection(
            resource=target.resource.name,
            namespace=target.namespace,
            labels=request.one("labelSelector"),
            fields=fields,
        )

    def _list(self, request: Request, target: Target) -> Json:
        items = self.objects.select(self._selection(request, target))
        version = {"resourceVersion": str(self.objects.version)}
        if table.is_wanted(request):
            return table.table(items, version)
        kind, api_version = f"{target.resource.kind}List", target.resource.api_version
        return {"kind": kind, "apiVersion": api_version, "metadata": version, "items": items}

    async def _watch(self, connection: Connection, selection: Selection) -> None:
        request = connection.request
        since = int(request.one("resourceVersion") or 0)
        wants_table = table.is_wanted(request)
        await connection.start_stream("application/json")
        initial: list[Json] = []
        if request.flag("sendInitialEvents") or not since:
            initial, since = self.objects.select(selection), self.objects.version
        for found in initial:
            await _send_event(connection, "ADDED", found, wants_table)
        if request.flag("sendInitialEvents"):
            mark = {"k8s.io/initial-events-end": "true"}
            meta = {"resourceVersion": str(since), "annotations": mark}
            await _send_event(connection, "BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": meta}, False)
        async for event in self.objects.watch(selection, since):
            await _send_event(connection, event.change, event.object, wants_table)

    async def _create(self, request: Request, target: Target) -> Json:
        new = request.json()
        meta = new.setdefault("metadata", {})
        if target.resource.namespaced:
            meta["namespace"] = target.namespace
        if self.objects.get(target.resource.name, target.namespace, meta["name"]):
            raise ApiError(409, "AlreadyExists", f'{target.resource.name} "{meta["name"]}" already exists')
        for key, text in new.pop("stringData", {}).items():
            new.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
        new |= {"kind": target.resource.kind, "apiVersion": target.resource.api_version}
        if request.one("dryRun"):
            return new
        created = await self.objects.create(target.resource.name, new)
        if target.resource.name in self.on_create:
            await self.on_create[target.resource.name](created)
        return created

    async def _on_object(self, verb: str, request: Request, target: Target) -> Json:
        resource, namespace, name = target.resource.name, target.namespace, target.name
        found = self.objects.get(resource, namespace, name)
        if found is None:
            group = f".{target.resource.group}" if target.resource.group else ""
            raise ApiError(404, "NotFound", f'{resource}{group} "{name}" not found')
        if verb == "get":
            return table.table([found], {}) if table.is_wanted(request) else found
        if verb == "delete":
            if resource == "pods":
                grace = request.json().get("gracePeriodSeconds", request.one("gracePeriodSeconds") or None)
                await self.pods.delete(namespace, name, None if grace is None else float(grace))
                return self.objects.get(resource, namespace, name) or _success()
            await self.objects.delete(resource, namespace, name)
            if resource in self.on_delete:
                await self.on_delete[resource](namespace, name)
            return _success()
        change = request.json()
        updated = await self.objects.update(resource, namespace, name, lambda found: _merge(found, change))
        return updated or {}

    # --- streams ------------------------------------------------------------------------------------------

    def _pod(self, target: Target) -> tuple[Json, RunningPod]:
        pod = self.objects.get("pods", target.namespace, target.name)
        if pod is None:
            raise ApiError(404, "NotFound", f'pods "{target.name}" not found')
        if "nodeName" not in pod["spec"]:
            raise ApiError(400, "BadRequest", f"pod {target.name} does not have a host assigned")
        running = self.pods.running.get((target.namespace, target.name))
        if running is None or not running.containers:
            name = pod["spec"]["containers"][0]["name"]
            raise ApiError(404, "NotFound", f'unable to upgrade connection: container not found ("{name}")')
        return pod, running

    async def _exec(self, connection: Connection, target: Target) -> None:
        request = connection.request
        _, running = self._pod(target)
        name = request.one("container") or next(iter(running.containers))
        if name not in running.containers:
            raise ApiError(400, "BadRequest", f"container {name} is not valid for pod {target.name}")
        if running.node.is_cut.is_set():
            await asyncio.sleep(1)
            where = f"{self.pods.lab.address(running.node.host)}:10250"
            raise ApiError(500, "InternalError", f"error dialing backend: dial tcp {where}: connect: no route to host")
        container = running.containers[name]
        if container.exit_code is not None:
            raise ApiError(500, "InternalError", f'unable to upgrade connection: container not found ("{name}")')
        socket = await WebSocket.accept(connection) if "sec-websocket-key" in request.headers else None
        if socket is None:
            raise ApiError(
                400, "BadRequest", "this stand-in speaks v4.channel.k8s.io and v5.channel.k8s.io over WebSocket only"
            )
        command = request.query.get("command", [])
        if not container.has_program(command[0]):
            await socket.send(ERROR, json.dumps(not_found_status(command[0])).encode())
            await socket.close()
            return
        stream = ExecStream(container, command, request.flag("stdin"), socket, running.node.is_cut)
        running.execs.add(stream)
        task = self.pods.spawn(stream.run())
        task.add_done_callback(lambda _: running.execs.discard(stream))
        await asyncio.shield(task)  # the command does not end with its connection

    async def _log(self, connection: Connection, target: Target) -> None:
        request = connection.request
        _, running = self._pod(target)
        container = running.containers[request.one("container") or next(iter(running.containers))]
        start = _tail_start(container.output, request.one("tailLines"))
        await connection.start_stream("text/plain")
        while True:
            data = bytes(container.output[start:])
            start += len(data)
            await connection.write(data)
            if not request.flag("follow") or (container.exit_code is not None and start == len(container.output)):
                break
            async with container.grown:
                await container.grown.wait()
        await connection.end_stream()


def _review_in(request: Request) -> Json:
    return access_review(request.body) if request.body.startswith(MAGIC) else request.json()


async def _send_event(connection: Connection, change: str, found: Json, wants_table: bool) -> None:
    shown = table.table([found], {}) if wants_table else found
    await connection.write(json.dumps({"type": change, "object": shown}).encode() + b"\n")


def _tail_start(output: bytes | bytearray, lines: str) -> int:
    if not lines or int(lines) < 0:
        return 0
    kept = bytes(output).splitlines(keepends=True)[len(bytes(output).splitlines()) - int(lines) :] if int(lines) else []
    return len(output) - sum(map(len, kept))


def _merge(found: Json, change: Json) -> None:
    """A JSON merge patch."""
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            _merge(found[key], value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[key] = value


def _success() -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
