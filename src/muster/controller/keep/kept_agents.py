"""The kept agents of one run: those that it takes over from the keeper, and those that it leaves there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from muster.controller.keep import handover
from muster.controller.keep.fit import Here, fitting, why_not_kept
from muster.controller.keep.keeper_socket import Connection, KeeperGone, connect, connect_or_start
from muster.controller.keep.messages import FROM_KEEPER, Agent, Entry, Missing
from muster.controller.links.child_process import Child
from muster.controller.links.link import AgentLink
from muster.engines.engine import Launch, StartCommand
from muster.errors import HostError
from muster.shared.wire import ProtocolError
from muster.spec import LEASE_ALONE, RunSpec
from muster.text import age, names, printable


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What was found for a run."""

    hosts: Collection[str] = ()
    """The hosts whose agents serve it."""
    has_stdin: bool = True
    """Whether the agent of rank 0 has got our stdin, if it was to."""


class KeptAgents:
    """Talks to the keeper for one run."""

    def __init__(self, spec: RunSpec, launch: Launch, info: Callable[[str], None]) -> None:
        """`info` shows a line."""
        self._info = info
        self._spec = spec
        self._launch = launch
        self._connection: Connection | None = None
        self._entries: dict[str, Entry] = {}
        """The agents that this run has taken over, by host."""
        self._here: Here | None = None
        self._is_possible = not why_not_kept(spec, launch)

    @property
    def here(self) -> Here:
        """What agents of this run inherit."""
        self._here = self._here or Here.now()
        return self._here

    async def take(self, links: Mapping[str, AgentLink], job: str, lease: float, stdin: AgentLink | None) -> Taken:
        """Take over the kept agents that fit; `links` are new ones by host, and `stdin` the one that gets our stdin."""
        if not (self._spec.reuse and self._is_possible):
            return Taken()
        self._connection = connect(FROM_KEEPER)
        if self._connection is None:
            return Taken()
        commands = [command for command in self._launch.commands if command.agents[0].name in links]
        try:
            kept = self._connection.receive()
            found, reasons = fitting(commands, kept["agents"], kept["gone"], self.here)
            now = time.time()
            taken, missing = self._receive(
                [command for command in commands if command.agents[0].name in found], found, links, job
            )
        except KeeperGone:
            self.close()
            return Taken()
        idle = max((now - found[name]["idle_since"] for name in taken), default=0.0)
        results = await asyncio.gather(
            *(self._renew(links[name], job, lease, wants_stdin=links[name] is stdin) for name in taken)
        )
        outcomes = dict(zip(taken, results, strict=True))
        usable = [name for name, (why, _, _) in outcomes.items() if not why]
        if usable:
            self._info(f"reusing the agents kept on {names(usable)} (idle for {age(idle)})")
        for host, why in {**reasons, **missing, **{name: why for name, (why, _, _) in outcomes.items() if why}}.items():
            self._info(f"{host}: starting a new agent instead of the kept one: {printable(why)}")
        for name in usable:
            if not outcomes[name][1]:
                self._info(f"{name}: the kept zygote has ended, starting a new one")
        return Taken(hosts=usable, has_stdin=all(given for _, _, given in outcomes.values()))

    def _receive(
        self, commands: Sequence[StartCommand], found: Mapping[str, Entry], links: Mapping[str, AgentLink], job: str
    ) -> tuple[list[str], dict[str, str]]:
        """Get agents from the keeper; returns the hosts of those that it still has, and why not of the others."""
        connection = self._connection
        assert connection is not None
        names = [command.agents[0].name for command in commands]
        if not names:
            return [], {}
        connection.send({"t": "take", "ids": [found[name]["id"] for name in names], "job": job})
        taken: list[str] = []
        reasons: dict[str, str] = {}
        for name, command in zip(names, commands, strict=True):
            message: Agent | Missing = connection.receive()
            if message["t"] == "missing":
                reasons[name] = message["why"]
            else:
                descriptors = connection.take_descriptors()
                handover.take(message, descriptors, links[name], self._launch.engine, command)
                self._entries[name] = message["entry"]
                taken.append(name)
        return taken, reasons

    async def _renew(self, link: AgentLink, job: str, lease: float, *, wants_stdin: bool) -> tuple[str, bool, bool]:
        """Returns why the agent is not usable, whether it has a zygote, and whether it has our stdin or needs none."""
        line = link.lines.line
        child = line.child if line is not None else None
        given = wants_stdin and isinstance(child, Child) and child.give(0)
        environ = dict(os.environ) if link.spec.inherits else None
        try:
            has_zygote = await handover.renew(link, job, lease, environ=environ, stdin=given)
        except HostError as error:
            self._entries.pop(link.name, None)
            return error.why, False, True
        except ProtocolError as error:
            self._entries.pop(link.name, None)
            return str(error), False, True
        return "", has_zygote, given or not wants_stdin

    async def leave(self, links: Sequence[AgentLink], unusable: Collection[str]) -> None:
        """Leave the agents of this run that are to be kept with the keeper, except on `unusable` hosts."""
        keeping = [link for link in links if link.name in self._entries or (self._spec.keep and self._is_possible)]
        usable = [link for link in keeping if link.is_idle and link.name not in unusable]
        renewed = await asyncio.gather(*map(_rest, usable))
        resting = [link for link, is_resting in zip(usable, renewed, strict=True) if is_resting and link.is_idle]
        try:
            await asyncio.to_thread(self._connect_again, bool(resting))
            for link in resting:
                assert self._connection is not None
                handover.give(self._connection, link, self._entry(link))
                await asyncio.to_thread(self._connection.receive)
        except KeeperGone as error:
            self._info(f"could not keep the agents: {error}")
            return
        finally:
            self.close()
        new = [link.name for link in resting if link.name not in self._entries]
        if new:
            length = age(self._spec.keep)
            self._info(f"the agents on {names(new)} stay for {length} after each run; `muster keep --end` ends them")

    def _connect_again(self, is_needed: bool) -> None:
        """Connect to the keeper for the end of the run, if the connection of its begin is not usable."""
        if is_needed and self._connection is None:
            self._connection = connect_or_start(FROM_KEEPER)
            self._connection.receive()

    def _entry(self, link: AgentLink) -> Entry:
        command = self._launch.engine.launch_one(self._launch, link.spec)
        assert command is not None
        before = self._entries.get(link.name)
        return {
            "id": before["id"] if before is not None else 0,
            "host": link.name,
            "argv": list(command.argv),
            "bridges": [list(bridge) for bridge in command.bridges],
            "remote": command.remote,
            "stamp": self.here.stamp,
            "terms": before["terms"] if before is not None else dict(self.here.terms),
            "python": link.facts["python"],
            "torch": link.facts["torch"] or "",
            "begin": before["begin"] if before is not None else time.time(),
            "idle_since": time.time(),
            "keep": self._spec.keep or (before["keep"] if before is not None else 0.0),
            "lease": LEASE_ALONE,
            "job": "",
        }

    def close(self) -> None:
        """Close the connection; the keeper forgets what this run still has."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def _rest(link: AgentLink) -> bool:
    """Let an agent forget its job; whether it has."""
    try:
        return await handover.renew(link, "", LEASE_ALONE)
    except (HostError, ProtocolError):
        return False
