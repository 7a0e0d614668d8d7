"""Watches the pods of a job: what the API server says about each of them now, or said last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import quote

from muster.engines.kubernetes.pod_reasons import Json, Reason, is_over, is_running, name_of, part, why_ended
from muster.engines.kubernetes.pods import Pod, read_pod
from muster.engines.kubernetes.proxy import Proxy, RequestError

_PAUSE = 1.0
"""Seconds before the next try if a list and its watch did not last as long."""

_WATCH_LIMIT = 240
"""Seconds of one watch; the list before the next one also finds what a dead connection did not report."""

_MOST_WATCHES = 8
"""Maximum number of pods that are watched one by one; more of them share a watch of their namespace."""

_log = logging.getLogger("muster.kubernetes")


class PodWatch:
    """The pods of a job, kept up to date until `close`."""

    def __init__(
        self,
        proxy: Proxy,
        pods: Sequence[Pod],
        on_change: Callable[[str], None],
        on_server: Callable[[bool], None],
    ) -> None:
        """`on_change` gets the name of a pod; `on_server` whether the API server has begun or ceased to answer."""
        self.pods: dict[str, Json] = {}
        """The last that is known of each pod, by name."""
        self.deleted: set[str] = set()
        """Pods whose objects are gone."""
        self.refusal: RequestError | None = None
        """Why watching is not possible at all."""
        self._proxy = proxy
        self._on_change = on_change
        self._on_server = on_server
        self._answers = True
        names, space = [pod.name for pod in pods], quote(pods[0].namespace)
        self._names = frozenset(names)
        self._selector = selector = pods[0].selector
        base = f"/api/v1/namespaces/{space}/pods"
        if selector:
            queries = [f"labelSelector={quote(selector)}"]
        elif len(names) <= _MOST_WATCHES:
            queries = [f"fieldSelector=metadata.name%3D{quote(name)}" for name in names]
        else:
            queries = [""]
        self._tasks = [asyncio.ensure_future(self._watch(f"{base}?{query}")) for query in queries]

    async def _watch(self, path: str) -> None:
        """List and watch, again and again: a watch ends after its limit, and when the API server restarts."""
        version, was_allowed = "", False
        while True:
            begin = time.monotonic()
            try:
                version = await self._list(path)
                self._set_answers(True)
                async for event in self._proxy.lines(f"{path}&watch=1&resourceVersion={version}", _WATCH_LIMIT):
                    if event.get("type") == "ERROR":
                        break  # most often the version is too old
                    self._take(event["object"], deleted=event.get("type") == "DELETED")
                was_allowed = True
            except RequestError as error:
                _log.info("watching pods: %s", error)
                is_denied = error.status in (401, 403)
                if is_denied and not was_allowed:
                    self.refusal = error
                    for name in self._names:
                        self._on_change(name)
                    return
                # What was allowed before is denied for a moment while the API server starts.
                was_allowed = was_allowed or version != ""
                self._set_answers(is_denied)
            except (KeyError, TypeError, AttributeError) as error:
                _log.warning("an event of the pod watch is not one: %r", error)
            if time.monotonic() - begin < _PAUSE:  # a server that ends every watch at once is not asked all the time
                await asyncio.sleep(_PAUSE)

    async def _list(self, path: str) -> str:
        answer = await self._proxy.get(path)
        items: list[Json] = answer["items"]
        for pod in items:
            self._take(pod)
        if "fieldSelector" not in path:
            gone = self.pods.keys() - {name_of(pod) for pod in items} - self.deleted
        else:
            named = path.rpartition("%3D")[2]
            gone = {named} & self.pods.keys() - self.deleted if not items else set[str]()
        for name in gone:
            self._take(self.pods[name], deleted=True)
        return str(answer["metadata"].get("resourceVersion") or "")

    def _take(self, pod: Json, *, deleted: bool = False) -> None:
        name = name_of(pod)
        if (not self._selector and name not in self._names) or (self.pods.get(name) == pod and not deleted):
            return
        self.pods[name] = pod
        (self.deleted.add if deleted else self.deleted.discard)(name)
        _log.debug("pod %s: %s%s", name, part(pod, "status").get("phase"), ", deleted" if deleted else "")
        self._on_change(name)

    def gone(self, pod: Pod) -> Reason | None:
        """Why a pod does not exist any more, or never runs again; None if it may run."""
        known = self.pods.get(pod.name)
        if known is None or not (pod.name in self.deleted or is_over(known)):
            return None
        deleted = pod.name in self.deleted
        return why_ended(known, pod.container, deleted=deleted) or Reason(what="its pod has ended")

    def others(self, pod: Pod) -> list[Pod]:
        """Other pods with the same labels that run; first those that have the same place in their Job."""
        found = [
            replace(read_pod(other, pod.container, pod.selector), context=pod.context)
            for name, other in self.pods.items()
            if pod.selector and name != pod.name and name not in self.deleted and is_running(other, pod.container)
        ]
        return sorted(found, key=lambda other: other.name.rpartition("-")[0] != pod.label)

    def _set_answers(self, answers: bool) -> None:
        if answers != self._answers:
            self._answers = answers
            self._on_server(answers)

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
