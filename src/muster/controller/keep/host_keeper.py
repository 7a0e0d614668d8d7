"""The keeper: a process of the user that holds idle agents, sends their heartbeats, and gives them to the next run."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.controller.events import Event
from muster.controller.keep import handover
from muster.controller.keep.keeper_socket import Connection, KeeperGone, is_own_user, locked
from muster.controller.keep.messages import FROM_RUN, Agent, Entry, Gone, Kept
from muster.controller.links.link import AgentLink
from muster.controller.links.open_files import raise_limit
from muster.engines.engine import AgentSpec, StartCommand
from muster.engines.ssh.engine import SshEngine
from muster.errors import MusterError
from muster.hosts import Host
from muster.shared.wire import HEARTBEAT

_END_LIMIT = 5.0
"""Seconds for an agent to end; then its connection is closed, and it ends by itself."""

_LINGER = 2.0
"""Seconds that a keeper without agents waits for some."""

_REMEMBERED = 64
"""Lost agents that are remembered, to say why the next run starts new ones."""


@dataclass
class _Held:
    """An agent of the keeper, or one that a run uses."""

    entry: Entry
    link: AgentLink | None = None
    """None while a run has it."""
    user: Connection | None = None
    """The run that has it."""
    is_unwanted: bool = False
    """Whether it ends when that run gives it back."""


class Keeper:
    """Serves one socket until it has nothing to keep."""

    def __init__(self, listener: socket.socket, at: Path) -> None:
        self._listener = listener
        self._at = at
        self._held: dict[int, _Held] = {}
        self._gone: list[Gone] = []
        self._number = 0
        self._clients: set[Connection] = set()
        self._needed = time.monotonic()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._is_over = False

    async def run(self) -> None:
        """Keep agents until their time is over, or this process gets a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        self._listener.setblocking(False)
        loop.add_reader(self._listener, self._accept)
        late = time.monotonic()
        while not self._is_over and (
            self._held or self._clients or self._tasks or time.monotonic() - self._needed < _LINGER
        ):
            now = time.monotonic()
            for held in list(self._held.values()):
                if held.link is not None:
                    held.link.excuse(max(0.0, now - late - 1.0))
                    held.link.beat()
                    if time.time() - held.entry["idle_since"] > held.entry["keep"]:
                        self._end(held)
            late = now + HEARTBEAT
            await asyncio.sleep(HEARTBEAT)
        loop.remove_reader(self._listener)
        self._stop_listening()
        for held in list(self._held.values()):
            self._end(held)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_LIMIT + 1)

    def _stop_listening(self) -> None:
        """Remove the socket while no run starts a keeper; one that is just connecting starts another."""
        with locked():
            self._at.unlink(missing_ok=True)
            self._listener.close()

    def _stop(self) -> None:
        self._is_over = True

    # --- connections ----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if not is_own_user(connection):
            connection.close()
            return
        client = Connection(connection, FROM_RUN)
        self._clients.add(client)
        asyncio.get_running_loop().add_reader(connection, self._read, client)
        kept: Kept = {
            "t": "kept",
            "pid": os.getpid(),
            "agents": [held.entry for held in self._held.values()],
            "gone": self._gone,
        }
        self._answer(client, kept)

    def _read(self, client: Connection) -> None:
        try:
            client.read()
            while (message := client.next()) is not None:
                self._on_message(client, message)
        except KeeperGone as error:
            print(f"a run has gone: {error}", file=sys.stderr, flush=True)
            self._leave(client)

    def _answer(self, client: Connection, message: Any) -> None:
        try:
            client.send(message)
        except KeeperGone:
            self._leave(client)

    def _leave(self, client: Connection) -> None:
        """A run has gone; agents that it still has have lost their pipes with it and end."""
        if client in self._clients:
            self._clients.discard(client)
            asyncio.get_running_loop().remove_reader(client.socket)
            client.close()
            self._needed = time.monotonic()
            for number in [number for number, held in self._held.items() if held.user is client]:
                del self._held[number]

    def _on_message(self, client: Connection, message: Any) -> None:
        if message["t"] == "take":
            for number in message["ids"]:
                if client in self._clients:  # else it has gone meanwhile, and nobody would give the agent back
                    self._lend(client, number, message["job"])
        elif message["t"] == "agent":
            self._take_in(client, message)
        elif message["t"] == "end":
            self._start(self._end_all(client, message["hosts"]))
        else:
            self._start(self._measure(client))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- agents ---------------------------------------------------------------------------------------------

    def _lend(self, client: Connection, number: int, job: str) -> None:
        held = self._held.get(number)
        link = held.link if held is not None else None
        if held is None or link is None or not link.is_idle:
            why = "it has ended" if link is None else f"no contact with it for {link.silence:.0f} s"
            self._answer(client, {"t": "missing", "why": why})
            return
        held.link, held.user = None, client
        held.entry = {**held.entry, "job": job}
        try:
            handover.give(client, link, held.entry)
        except KeeperGone:
            self._leave(client)

    def _take_in(self, client: Connection, message: Agent) -> None:
        descriptors = client.take_descriptors()
        before = self._held.pop(message["entry"]["id"], None)
        is_wanted = before is None or not before.is_unwanted
        for held in list(self._held.values()):  # one per host: the last one fits the next run best
            if held.entry["host"] == message["entry"]["host"] and held.link is not None:
                self._end(held)
        self._number += 1
        entry: Entry = {**message["entry"], "id": self._number, "job": "", "idle_since": time.time()}
        self._gone = [gone for gone in self._gone if gone["host"] != entry["host"]]
        command = StartCommand(
            argv=tuple(entry["argv"]),
            agents=(AgentSpec(host=Host(name=entry["host"]), name=entry["host"]),),
            remote=entry["remote"],
            bridges=tuple(tuple(bridge) for bridge in entry["bridges"]),
        )
        link = AgentLink(command.agents[0], self._on_event, lambda host, line: None, entry["lease"])
        held = self._held[self._number] = _Held(entry, link)
        handover.take(message, descriptors, link, SshEngine(), command)
        link.ping()
        if not is_wanted:
            self._end(held)
        self._answer(client, {"t": "done"})

    def _on_event(self, link: AgentLink, event: Event) -> None:
        if link.lost:
            for number, held in list(self._held.items()):
                if held.link is link:
                    del self._held[number]
                    gone: Gone = {"host": link.name, "argv": held.entry["argv"], "why": link.lost.why}
                    self._gone = [*self._gone, gone][-_REMEMBERED:]
            self._needed = time.monotonic()

    def _end(self, held: _Held) -> None:
        """End an idle agent; one that is in use ends when its run gives it back."""
        if held.link is None:
            held.is_unwanted = True
            return
        self._held.pop(held.entry["id"], None)
        self._needed = time.monotonic()
        self._start(held.link.close(limit=_END_LIMIT))

    async def _end_all(self, client: Connection, hosts: Sequence[str]) -> None:
        for held in list(self._held.values()):
            if not hosts or held.entry["host"] in hosts:
                self._end(held)
        own = asyncio.current_task()
        others = [task for task in self._tasks if task is not own]
        if others:
            await asyncio.wait(others, timeout=_END_LIMIT + 1)
        self._answer(client, {"t": "done"})

    async def _measure(self, client: Connection) -> None:
        async def ask(link: AgentLink) -> int:
            try:
                return (await link.request("memory", limit=3.0))["bytes"]
            except MusterError:
                return 0

        idle = {number: held.link for number, held in self._held.items() if held.link is not None}
        found = await asyncio.gather(*map(ask, idle.values()))
        self._answer(client, {"t": "measured", "bytes": dict(zip(map(str, idle), found, strict=True))})


def main(*, listener: int, at: str) -> None:
    """Serve an inherited socket, whose file is `at`."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)
    raise_limit()
    with socket.socket(fileno=listener) as listening:
        listening.set_inheritable(False)
        asyncio.run(Keeper(listening, Path(at)).run())
