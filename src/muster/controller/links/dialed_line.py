"""A connection that an agent opened: to start, or to resume its session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.controller.links.link import AgentLink, LinkLost
from muster.controller.links.resuming import Resuming
from muster.errors import HostError

if TYPE_CHECKING:
    from muster.controller.links.dialed import DialedConnector

HELLO_LIMIT = 10.0
"""Seconds within which a client must identify itself."""

_LONGEST_HELLO = 4096
"""Maximum size of the hello line in bytes."""

_REDIAL = 0.5
"""Seconds in which an agent that lives connects again, although its start command seems to have ended."""

_LEAVE = 2.0
"""Seconds for the last message to a host that is given up."""

_log = logging.getLogger("muster.link")


class DialedLine(asyncio.Protocol):
    """A connection of a client, which becomes the connection of a link once the client has identified itself."""

    why_lost = "connection lost"
    child = None

    def __init__(self, connector: DialedConnector) -> None:
        self._connector = connector
        self._transport: asyncio.Transport | None = None
        self._hello = b""
        self._is_rejected = False
        self._link: AgentLink | None = None
        self._resuming: Resuming | None = None
        self._resumed: AgentLink | None = None
        self._too_late: asyncio.TimerHandle | None = None
        self.on_settled: Callable[[], None] = lambda: None
        """Called when the client has been admitted or has gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; it must identify itself."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._too_late = asyncio.get_running_loop().call_later(HELLO_LIMIT, self.close)

    def data_received(self, data: bytes) -> None:
        """Read the hello of the client, then the messages of its agent."""
        if self._link is not None:
            self._link.on_data(data)
            return
        try:
            self._on_stranger(data)
        except Exception as error:  # anyone can reach the port, so an error here must not become one of the job
            _log.info("dropped a connection: %s", repr(error)[:200])
            self.close()

    def _on_stranger(self, data: bytes) -> None:
        """Read what a client sends until it has been admitted."""
        if self._is_rejected:
            return
        if self._resuming is not None:
            self._resume(data)
            return
        self._hello += data
        line, found, rest = self._hello.partition(b"\n")
        if not found and len(self._hello) < _LONGEST_HELLO:
            return
        link, resumes = self._connector.admit(line)
        if link is None:
            self._is_rejected = True
            self.leave()  # so that an agent knows that this is the answer, and does not dial again
        elif resumes:
            self._resuming, self._resumed = Resuming(link.lines, self), link
            self._resume(rest)
        else:
            self._link = link
            self._is_admitted()
            link.attach(self, self._connector.payload)

    def _resume(self, data: bytes) -> None:
        assert self._resuming is not None
        if not self._resuming.on_data(data):
            self.close()
        elif self._resuming.lines.line is self:
            self._link = self._resumed
            self._is_admitted()

    def _is_admitted(self) -> None:
        if self._transport is not None:
            address, known = str(self._transport.get_extra_info("peername")[0]), self._connector.known
            known[address] = max(1, known[address] + (self._resumed is None))
        self._settle()

    def _settle(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
        self.on_settled()

    @property
    def way_back(self) -> Redialed | None:
        """An agent that dialed back does so again."""
        return Redialed(self._link, self._connector.has_ended) if self._link is not None else None

    def eof_received(self) -> None:
        """Close the connection at once; asyncio would wait 30 s for a TLS shutdown that a killed agent never sends."""
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._settle()
        if self._link is not None:
            self._link.on_closed(self)
        elif self._resuming is not None:
            self._resuming.lines.failed_to_resume(self)

    def send(self, data: bytes) -> None:
        """Write without blocking."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """Close the connection when what was sent has left, or after a moment."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(_LEAVE, self.close)

    async def explain(self, noise: str) -> HostError:
        """Explain why an agent that connected did not start."""
        assert self._link is not None
        last = noise.splitlines()[-1:] or ["its connection closed"]
        return LinkLost(self._link.name, f"the agent did not start: {last[0]}")


class Redialed:
    """The agent connects again by itself, unless it has ended."""

    boxed = False
    wait = 0.0  # such an agent does not wait; it dials

    def __init__(self, link: AgentLink, has_ended: Callable[[AgentLink], bool]) -> None:
        self._link = link
        self._has_ended = has_ended
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Watch for the end of the agent."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._watch())

    def end(self, keep: object = None) -> None:
        """Stop watching; the agent drops connections that it does not need."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self) -> None:
        while not self._has_ended(self._link):
            await asyncio.sleep(0.05)
        await asyncio.sleep(_REDIAL)
        self._link.lose(self._link.killed or "its agent died")
