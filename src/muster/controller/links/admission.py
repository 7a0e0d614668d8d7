"""The port for agents that dial back: accepts connections, and bounds what callers without the token can cost.

The port stays open for the whole job, because agents whose connection broke dial again. Anyone can reach it, so until a
caller has been admitted, nothing it does may cost more than a place among a limited number, for a limited time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable

from muster.controller.links.dialed_line import HELLO_LIMIT, DialedLine

STRANGERS = 64
"""Number of callers that may be waiting for admission, beside one for each agent of the job."""

_ACCEPTED_AT_ONCE = 64
"""Maximum number of connections that are accepted before the event loop does other work."""

_PAUSE = 0.5
"""Seconds without accepting connections if this process or machine has no descriptor for another one."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger("muster.link")


class Caller:
    """A connection that has not been admitted yet."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.address = address
        self.socket = sock
        self.line: DialedLine | None = None
        self.task: asyncio.Task[None] | None = None

    def drop(self) -> None:
        """Close the connection, in whichever state it is."""
        if self.task is not None:
            self.task.cancel()
        if self.line is not None:
            self.line.close()


class Admission:
    """The listening socket, and the callers that have not been admitted."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        make_line: Callable[[], DialedLine],
        agents: Callable[[], int],
        agents_at: Callable[[str], int],
    ) -> None:
        """`agents` is the number of agents of the job, `agents_at` how many have connected from an address."""
        self.is_out_of_room = False
        """Whether a connection could not be accepted lately because there was no descriptor for it."""
        self._socket = sock
        self._context = context
        self._make_line = make_line
        self._agents = agents
        self._agents_at = agents_at
        self._callers: list[Caller] = []
        """The oldest first."""
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(1024)
        self._listen()

    def close(self) -> None:
        """Close the port, and drop all callers that have not been admitted."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for caller in list(self._callers):
            caller.drop()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._wait_for_room(error)
                return  # nobody waits any more, or the caller has left meanwhile
            self.is_out_of_room = False
            self._take(sock, str(address[0]))

    def _wait_for_room(self, error: OSError) -> None:
        """Drop a caller, if one waits, and accept others later; the agents that are connected do not notice."""
        _log.warning("could not accept a connection of an agent: %s", error.strerror)
        self.is_out_of_room = True
        if self._callers:
            self._drop_one()
        self._loop.remove_reader(self._socket.fileno())
        self._pause = self._loop.call_later(_PAUSE, self._listen)

    def _take(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        caller = Caller(sock, address)
        caller.task = asyncio.ensure_future(self._greet(caller))
        caller.task.add_done_callback(lambda task: self._on_greeted(caller, task))
        self._callers.append(caller)
        if len(self._callers) > STRANGERS + self._agents():
            self._drop_one()

    def _drop_one(self) -> None:
        """Make room: the address with the most callers loses its oldest.

        The agents that have connected from an address may dial again, so they do not count, nor do their last tries.
        """
        agents = {caller.address: self._agents_at(caller.address) for caller in self._callers}
        counts = Counter(caller.address for caller in self._callers)
        victim = max(
            self._callers, key=lambda one: (counts[one.address] - 2 * agents[one.address], not agents[one.address])
        )
        self._callers.remove(victim)
        victim.drop()

    async def _greet(self, caller: Caller) -> None:
        """Agree on the encryption, and let the line wait for the hello."""

        def make() -> DialedLine:
            caller.line = self._make_line()
            caller.line.on_settled = lambda: self._settled(caller)
            return caller.line

        await self._loop.connect_accepted_socket(
            make, caller.socket, ssl=self._context, ssl_handshake_timeout=HELLO_LIMIT
        )

    def _on_greeted(self, caller: Caller, task: asyncio.Task[None]) -> None:
        """Whatever a caller did that failed is its own loss."""
        if task.cancelled() or task.exception() is not None:
            self._settled(caller)
            if caller.line is None:  # else its transport closes it
                caller.socket.close()

    def _settled(self, caller: Caller) -> None:
        """A caller has been admitted or has gone."""
        if caller in self._callers:
            self._callers.remove(caller)
