"""Agents in pods of Kubernetes: pipes through one `kubectl proxy`, and what a watch of the pods says about them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from muster.controller.links.child_process import Child, StartedChild
from muster.controller.links.link import AgentLink
from muster.controller.links.piped import PipedConnector, PipeLine
from muster.controller.links.reconnect import Reconnect
from muster.engines.engine import Launch, StartCommand
from muster.engines.kubernetes.engine import PodLaunch
from muster.engines.kubernetes.exec_stream import ExecStream
from muster.engines.kubernetes.pod_facts import NEEDED, REVIEWS, PodFacts, gpus_requested, review
from muster.engines.kubernetes.pod_reasons import (
    Reason,
    container_id,
    is_leaving,
    is_running,
    seconds_left,
    why_ended,
    why_waiting,
)
from muster.engines.kubernetes.pod_watch import PodWatch
from muster.engines.kubernetes.pods import Pod
from muster.engines.kubernetes.proxy import within
from muster.errors import HostError
from muster.text import count

_WAIT = 5
"""How many times longer than for an agent the controller waits for a pod that does not run yet."""

_REASON_LIMIT = 3.0
"""Seconds for the watch to say why an agent has died: the kubelet reports the end of a container a moment later."""

_AGAIN_LIMIT = 10.0
"""Seconds for a second exec that asks why the first one failed."""

_NO_LIMIT = 1e9
"""Seconds that an agent waits for another connection: its lease is shorter."""

_FORBIDDEN = 403

_OF_KUBECTL = re.compile(rb"(?m)^(?:[EWI]\d{4} .*|command terminated with exit code \d+)\n?")
"""What kubectl prints for itself: messages for its developers, and exit codes."""

_log = logging.getLogger("muster.kubernetes")


class PodProcess:
    """A command in a pod: over the proxy, or by `kubectl exec` if the user's role allows only that.

    The proxy needs the verb `get` on pods/exec, and kubectl can do with `create`.
    """

    def __init__(
        self,
        connector: PodConnector,
        pod: Pod,
        argv: Sequence[str],
        *,
        on_data: Callable[[bytes], None],
        on_words: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._connector = connector
        self._pod = pod
        self._argv = argv
        self._on_data, self._on_words, self._on_closed = on_data, on_words, on_closed
        self._has_spoken = False
        """Whether the command, or the API server, has said anything."""
        self._stream: ExecStream | None = None
        if connector.uses_kubectl:
            self._child: StartedChild = self._by_kubectl()
        else:
            command = argv[argv.index("--") + 1 :]
            self._child = self._stream = self._exec(command, self._on_data_first, self._on_stream_closed)

    def _by_kubectl(self) -> Child:
        def on_words(text: bytes) -> None:
            self._on_words(_OF_KUBECTL.sub(b"", text))

        self._has_spoken = True
        return Child(self._argv, on_data=self._on_data, on_words=on_words, on_closed=self._on_closed)

    def _exec(
        self, command: Sequence[str], on_data: Callable[[bytes], None], on_closed: Callable[[], None]
    ) -> ExecStream:
        def on_words(text: bytes) -> None:
            if stream.messages.status != _FORBIDDEN:  # kubectl will say the same
                self._has_spoken = True
                self._on_words(text)

        proxy = self._connector.launch.proxy
        stream = ExecStream(proxy, self._pod, command, on_data=on_data, on_words=on_words, on_closed=on_closed)
        return stream

    def _on_data_first(self, data: bytes) -> None:
        self._has_spoken = True
        self._on_data(data)

    def _on_stream_closed(self) -> None:
        stream = self._stream
        if stream is None or stream.messages.status != _FORBIDDEN:
            self._on_closed()
            return
        _log.info("exec over kubectl proxy is not allowed, using kubectl exec")
        self._connector.uses_kubectl = True
        stream.close()
        try:
            self._child = self._by_kubectl()
        except OSError:
            self._on_closed()
        else:
            self._child.send(stream.unsent)

    def send(self, data: bytes) -> None:
        """Write to its stdin without blocking."""
        self._child.send(data)

    async def exit_code(self, limit: float) -> int | None:
        """The exit code; None if it is not known within `limit` seconds."""
        code = await self._child.exit_code(limit)
        if code is not None or self._has_spoken:
            return code
        # A server that closes a connection on which data is under way may lose the reason, so ask without sending any.
        ended = asyncio.Event()
        python = self._argv[self._argv.index("--") + 1]
        try:
            again = self._exec((python, "--version"), lambda data: None, ended.set)
        except OSError:
            return None
        try:
            await within(_AGAIN_LIMIT, ended.wait())
            return again.code or None
        except asyncio.TimeoutError:
            return None
        finally:
            again.close()

    def close(self, *, kill: bool) -> None:
        """Drop the connection."""
        self._child.close(kill=kill)

    def leave(self) -> None:
        """Drop the connection in a moment, so that what was written arrives."""
        self._child.leave()


class PodReconnect(Reconnect):
    """Reaches an agent in a pod again; if the agent is dead, the watch may say why."""

    def __init__(self, connector: PodConnector, link: AgentLink, command: StartCommand) -> None:
        assert command.pod is not None
        # The agent sees no difference between a killed controller, which sends it a last message, and a restart of
        # the API server, so it waits as long as its lease allows.
        start = partial(PodProcess, connector, command.pod)
        super().__init__(link, command.bridges, boxed=True, wait=_NO_LIMIT, start=start)
        self._why = lambda: connector.why_gone(link)
        self._explaining: asyncio.Task[None] | None = None
        self._link = link

    def on_dead(self) -> None:
        """Wait a moment for the reason."""
        if self._explaining is None:
            self._explaining = asyncio.ensure_future(self._explain())

    async def _explain(self) -> None:
        end = time.monotonic() + _REASON_LIMIT
        while self._why() is None and time.monotonic() < end and not self._link.lost:
            await asyncio.sleep(0.05)
        reason = self._why()
        self._link.lose(reason.what if reason is not None else "its agent died")


class PodConnector(PipedConnector):
    """Starts agents in pods, and watches the pods."""

    def __init__(self, launch: Launch, folder: Path, on_text: Callable[[str, str], None]) -> None:
        super().__init__(launch, folder, on_text)
        assert isinstance(launch, PodLaunch)
        self.launch: PodLaunch = launch
        self.uses_kubectl = False
        """Whether each connection needs a kubectl of its own."""
        self._on_text = on_text
        self._watch: PodWatch | None = None
        self._links: dict[str, AgentLink] = {}
        """The link of each pod, by the name of the pod."""
        self._pods: dict[AgentLink, Pod] = {}
        self._known: dict[AgentLink, tuple[str, str]] = {}
        """The pod and the container in which each agent runs, by their ids."""
        self._leaving: set[AgentLink] = set()
        self._waiting: dict[str, Reason] = {}
        """Why pods do not run yet, by host."""
        self._news = asyncio.Event()

    @property
    def watch(self) -> PodWatch:
        """The watch of the pods."""
        assert self._watch is not None
        return self._watch

    async def connect(
        self, links: Sequence[AgentLink], payload: bytes, limit: float, on_failure: Callable[[HostError], None]
    ) -> None:
        """Start an agent in every pod as soon as it runs."""
        await self.launch.proxy.up()
        pods = [command.pod for command in self.launch.commands if command.pod is not None]
        self._watch = PodWatch(self.launch.proxy, pods, self._on_change, self._on_server)
        await super().connect(links, payload, limit, on_failure)

    async def ready(self, link: AgentLink, command: StartCommand, limit: float) -> StartCommand:
        """Wait until the pod runs; where it is gone, use another one of its selector that no agent uses."""
        begin = time.monotonic()
        patience = limit if self.launch.can_lack_hosts else limit * _WAIT
        command = self._replaced(command)
        pod = command.pod
        assert pod is not None
        self._links[pod.name], self._pods[link] = link, pod
        # The watch has just begun; a pod that ran a moment ago needs no second look.
        while not (pod.is_running and pod.name not in self.watch.pods) and self.watch.refusal is None:
            news, reason = self._news, self._why_not(link, pod)
            if reason is None:
                break
            waited = time.monotonic() - begin
            if reason.is_final:
                raise HostError(link.name, reason.what, hint=reason.hint or f"see `kubectl describe pod {pod.name}`")
            if waited > patience:
                raise self._late(link.name, reason, waited)
            try:
                await within(max(0.1, patience - waited), news.wait())
            except asyncio.TimeoutError:
                pass
        self._waiting.pop(link.name, None)
        return command

    def _why_not(self, link: AgentLink, pod: Pod) -> Reason | None:
        """Why a pod does not run yet; None if it does."""
        known = self.watch.pods.get(pod.name)
        gone = self.watch.gone(pod)
        if gone is not None:
            return replace(gone, is_final=True)
        if known is None:
            reason = Reason(what="Kubernetes has not said anything about it yet")
        elif is_running(known, pod.container):
            return None
        else:
            reason = why_waiting(known, pod.container)
        self._waiting[link.name] = reason
        return reason

    def _late(self, name: str, reason: Reason, waited: float) -> HostError:
        up = sum(not link.lost and bool(link.facts) for link in self._links.values())
        gang = (
            f"; Kubernetes schedules pods one by one, so {count(up, 'pod')} of this job may hold GPUs that it needs "
            "(Kueue and Volcano start all pods or none)"
            if up and "schedule" in reason.what
            else ""
        )
        return HostError(name, f"its pod did not run within {waited:.0f} s: {reason.what}{gang}", hint=reason.hint)

    def _replaced(self, command: StartCommand) -> StartCommand:
        """The command for another pod with the same labels, if the pod of this one is gone."""
        pod = command.pod
        assert pod is not None
        if self.watch.gone(pod) is None:
            return command
        for other in self.watch.others(pod):
            used = self._links.get(other.name)
            if used is None or used.lost:
                _log.info("pod %s takes the place of %s", other.name, pod.name)
                argv = (*other.exec_argv("-i", "-q"), *command.argv[command.argv.index("--") + 1 :])
                return replace(command, argv=argv, bridges=(argv,), pod=other)
        return command

    def line(self, link: AgentLink, command: StartCommand) -> PipeLine:
        """Start the command of one agent."""
        assert command.pod is not None
        start = partial(PodProcess, self, command.pod)
        line = PipeLine(link, self.launch.engine, command, self._on_early_words, start)
        line.way_back = PodReconnect(self, link, command)
        return line

    # --- what the watch says --------------------------------------------------------------------------------

    def why_gone(self, link: AgentLink) -> Reason | None:
        """Why the agent of a pod that was up has ended; None if its container still runs."""
        pod = self._pods[link]
        gone = self.watch.gone(pod)
        known = self.watch.pods.get(pod.name)
        if gone is not None or known is None:
            return gone
        now = (str(known["metadata"].get("uid")), container_id(known, pod.container))
        before = self._known.setdefault(link, now) if is_running(known, pod.container) else self._known.get(link, now)
        if now == before and (is_running(known, pod.container) or is_leaving(known)):
            return None
        return why_ended(known, pod.container)

    def _on_change(self, name: str) -> None:
        self._news.set()
        self._news = asyncio.Event()
        link = self._links.get(name)
        if link is None or link.lost or link.closing or not link.facts or self.watch.refusal is not None:
            return
        reason = self.why_gone(link)
        if reason is not None:
            link.lose(reason.what)
            return
        known = self.watch.pods[name]
        left = seconds_left(known)
        if left is not None and link not in self._leaving:
            self._leaving.add(link)
            reason = why_ended(known, self._pods[link].container)
            why = reason.what if reason is not None else "its pod is being deleted"
            if self.launch.can_lack_hosts:
                link.hand_on({"t": "notice", "why": why, "left": left})
            else:
                self._on_text(link.name, f"{why}; Kubernetes ends it within {left:.0f} s")

    def _on_server(self, answers: bool) -> None:
        if any(link.facts and not link.lost for link in self._links.values()):
            said = "answers again" if answers else "does not answer; the ranks keep running meanwhile"
            self._on_text("kubernetes", f"the API server {said}")

    @property
    def last_words(self) -> str:
        """Why pods do not run yet."""
        return "; ".join(dict.fromkeys(reason.what for reason in self._waiting.values()))

    @last_words.setter
    def last_words(self, words: str) -> None:
        pass  # there is no container program

    async def pod_facts(self) -> PodFacts:
        """What the API server says about permissions and requested GPUs."""
        space = next(iter(self._pods.values())).namespace if self._pods else ""
        answers = await asyncio.gather(
            *(self.launch.proxy.get(REVIEWS, review(*needed, space)) for needed in NEEDED), return_exceptions=True
        )
        denied = tuple(
            needed
            for needed, answer in zip(NEEDED, answers, strict=True)
            if not isinstance(answer, BaseException) and not answer["status"].get("allowed")
        )
        known = ((link.name, self.watch.pods.get(pod.name), pod.container) for link, pod in self._pods.items())
        gpus = {name: gpus_requested(found, container) for name, found, container in known if found is not None}
        return PodFacts(namespace=space, denied=denied, gpus=gpus)

    async def close(self) -> None:
        """End the watch and the proxy."""
        if self._watch is not None:
            await self._watch.close()
        await self.launch.proxy.close()
