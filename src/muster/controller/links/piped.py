"""Agents over pipes: one child process per host, with its stdin and stdout as the channel."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from muster.controller.links.all_or_errors import all_or_errors
from muster.controller.links.child_process import Child, StartChild
from muster.controller.links.link import AgentLink
from muster.controller.links.open_files import require, start_hint
from muster.controller.links.reconnect import Reconnect
from muster.engines.container.container import PULL_LIMIT, pull_in, too_slow_pull
from muster.engines.engine import Engine, Launch, StartCommand
from muster.errors import HostError, MusterError
from muster.output.lines import LineSplitter

LOGINS_AT_ONCE = 32
"""Maximum number of simultaneous logins; each takes 0.1 s of CPU, and jump hosts limit connections."""


class Output:
    """The stderr output of a child: keeps the end of it, and passes on every line."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.text = ""
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._splitter = LineSplitter()

    def feed(self, data: bytes) -> None:
        """Add output."""
        text = self._decoder.decode(data)
        self.text = (self.text + text)[-16_000:]
        for line in self._splitter.feed(text):
            if line.text.strip():
                self._on_line(line.text)


class PipeLine:
    """A link's connection over the pipes of a child process."""

    def __init__(
        self,
        link: AgentLink,
        engine: Engine,
        command: StartCommand,
        on_early_words: Callable[[str], None] = lambda words: None,
        start: StartChild = Child,
    ) -> None:
        self.command = command
        self.way_back = Reconnect(link, command.bridges, boxed=command.box is not None) if command.bridges else None
        self._engine = engine
        self._link = link
        self._on_early_words = on_early_words
        self._words = Output(self._on_line)
        try:
            self.child = start(
                command.argv,
                on_data=link.on_data,
                on_words=self._words.feed,
                on_closed=lambda: link.on_closed(self),
            )
        except OSError as error:
            raise HostError(
                link.name,
                f"could not start `{command.argv[0]}` ({error.strerror})",
                hint=start_hint(error, engine.program_hint(command)),
            ) from None

    def _on_line(self, line: str) -> None:
        if self._link.facts:
            if not self._link.closing:
                self._link.on_text(self._link.name, line)
        elif self.command.box is not None:
            pull = pull_in(line)
            self._on_early_words(line if pull else f"{self._link.name}: {line}")
            if pull:
                self._link.allow(PULL_LIMIT, too_slow_pull(self._link.name, pull[1]))

    def send(self, data: bytes) -> None:
        """Write without blocking."""
        self.child.send(data)

    def close(self) -> None:
        """Close the pipes; a local agent is not killed, because it sees that and ends its ranks before it exits."""
        self.child.close(kill=self.command.remote)

    def leave(self) -> None:
        """Close the pipes when what was sent has left, or after a moment."""
        if self.command.remote:
            self.child.leave()
        else:
            self.close()

    async def explain(self, noise: str) -> MusterError:
        """Explain why the agent did not start."""
        code = await self.child.exit_code(2.0)
        return self._engine.explain(self.command, code, self._words.text.strip() or noise)  # nologin writes to stdout

    @property
    def why_lost(self) -> str:
        """What it means if the pipes close."""
        return "connection lost" if self.command.remote else "its agent died"


class PipedConnector:
    """Starts agents over the pipes of their start commands."""

    def __init__(self, launch: Launch, folder: Path, on_text: Callable[[str, str], None]) -> None:
        self.launch = launch
        self.called = [command.agents[0].name for command in launch.commands if command.remote]
        """The hosts that the user may have to wait for."""
        self.gives_stdin = False
        """Whether the agent of rank 0 inherits stdin, for its ranks."""
        self.last_words = ""
        """The last output of a container program while agents are missing."""

    def give_stdin(self) -> bool:
        """Let the agent of rank 0 inherit stdin, if possible; to be called before connecting."""
        self.gives_stdin = self.launch.agents[0].here
        return self.gives_stdin

    def _on_early_words(self, words: str) -> None:
        self.last_words = words

    async def connect(
        self, links: Sequence[AgentLink], payload: bytes, limit: float, on_failure: Callable[[HostError], None]
    ) -> None:
        """Start the agents of these links concurrently; raises all failures together at the end."""
        require(3 * len(links))
        logins = asyncio.Semaphore(LOGINS_AT_ONCE)

        def begin(link: AgentLink, command: StartCommand) -> PipeLine:
            if not self.gives_stdin or link.spec is not self.launch.agents[0]:
                return self.line(link, command)
            stdin = os.dup(0)
            try:
                start = partial(Child, for_ranks=stdin, by_socket=True)
                return PipeLine(link, self.launch.engine, command, self._on_early_words, start)
            finally:
                os.close(stdin)

        async def open_one(link: AgentLink, command: StartCommand) -> None:
            try:
                command = await self.ready(link, command, limit)
                async with logins:
                    await link.open(begin(link, command), payload, limit)
            except HostError as error:
                on_failure(error)
                raise

        commands = {command.agents[0].name: command for command in self.launch.commands}
        await all_or_errors([open_one(link, commands[link.name]) for link in links])

    async def connect_one(self, link: AgentLink, command: StartCommand, payload: bytes, limit: float) -> None:
        """Start an agent again on one host that was lost or could not be reached before."""
        command = await self.ready(link, command, limit)
        await link.open(self.line(link, command), payload, limit)

    async def ready(self, link: AgentLink, command: StartCommand, limit: float) -> StartCommand:
        """Wait until the host can be connected to; returns the command for that."""
        return command

    def line(self, link: AgentLink, command: StartCommand) -> PipeLine:
        """Start the command of one agent."""
        start = partial(Child, by_socket=command.agents[0].here)
        return PipeLine(link, self.launch.engine, command, self._on_early_words, start)

    async def close(self) -> None:
        """Nothing to do: closing the links is enough."""

    def why_ended(self) -> str | None:
        """No scheduler ends these jobs."""
        return None

    def may_explain(self, waited: float) -> bool:
        """Nothing to wait for."""
        return False
