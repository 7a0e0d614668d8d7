"""Lets the controller reach this agent again: a socket without a file, to which another connection leads.

Every user of the host can see and use the socket, so each side must prove that it knows the secret of the session.
"""

from __future__ import annotations

import os
import sys

from ..shared import light_selectors as selectors
from ..shared import light_socket as socket
from ..shared.resume_proof import is_proof, proof
from ..shared.wire import ProtocolError, decode, encode
from .channel import Pipes
from .controller_session import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..shared.events import Challenge, Resumed
    from ..shared.requests import Session
    from .channel import Tls
    from .controller_session import ControllerSession

_MOST = 8
"""Maximum number of connections that have not proved anything yet."""

_WAITING = 128
"""Maximum number of connections that wait for the agent's loop."""

_LIMIT = 5.0
"""Seconds for the proof."""

_LONGEST = 4096
"""Maximum size of the proof in bytes."""


class ResumeSocket:
    """The socket on which an agent behind ssh or in a pod listens; with `name` only, because it needs no file."""

    def __init__(self, session: ControllerSession, selector: selectors.Selector, terms: Session) -> None:
        self._session = session
        self._selector = selector
        self._terms = terms
        self.wait = terms["wait"]
        """Seconds to wait for the controller after a connection has ended."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind("\0" + terms["name"])
        self._socket.listen(_WAITING)
        self._socket.setblocking(False)
        self._claims: list[Claim] = []
        selector.register(self._socket, selectors.EVENT_READ, self._on_connection)

    def _on_connection(self) -> None:
        for _ in range(_WAITING):
            try:
                connection, _address = self._socket.accept()
            except OSError:
                return
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        with connection:
            user = _user_of(connection)
            # In a container the controller's connection may come from another user id.
            if user not in (os.geteuid(), 0) and not self._terms["boxed"]:
                return  # else it could take the place of the controller's connection, again and again
            connection.setblocking(False)
            try:
                channel = Pipes(connection.fileno(), connection.fileno())
            except OSError:
                return  # no more descriptors
        self._claims.append(Claim(channel, self._session, self._selector, self._terms, user=user))
        self._claims = [claim for claim in self._claims if not claim.is_over]
        if len(self._claims) > _MOST:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drop the oldest connection of the user who has most of them, so that nobody keeps out the controller."""
        users = [claim.user for claim in self._claims]
        most = max(map(users.count, users))
        victim = next(claim for claim in self._claims if users.count(claim.user) == most)
        victim.close()
        self._claims.remove(victim)

    def step(self) -> None:
        """Drop connections that took too long."""
        for claim in self._claims:
            claim.step()
        self._claims = [claim for claim in self._claims if not claim.is_over]

    def close(self) -> None:
        """Stop listening."""
        self._selector.unregister(self._socket)
        self._socket.close()


def _user_of(connection: socket.socket) -> int:
    """The user at the other end of a unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # process, user and group
    return int.from_bytes(credentials[4:8], sys.byteorder)


class Claim:
    """A new connection, whose other end must prove that it is the controller of this session."""

    def __init__(
        self,
        channel: Pipes | Tls,
        session: ControllerSession,
        selector: selectors.Selector,
        terms: Session,
        first: bytes = b"",
        user: int = -1,
    ) -> None:
        """Send `first` and a challenge; `user` is who is at the other end, if known."""
        self.is_over = False
        self.user = user
        self._channel = channel
        self._session = session
        self._selector = selector
        self._secret = terms["secret"]
        self._nonce = os.urandom(16).hex()
        self._data = b""
        self._deadline = clock() + _LIMIT
        challenge: Challenge = {"t": "challenge", "nonce": self._nonce}
        selector.register(channel.input, selectors.EVENT_READ, self._on_input)
        try:
            channel.write(first + encode(challenge))
        except OSError:
            self.close()

    def step(self) -> None:
        """Give it up if it took too long."""
        if not self.is_over and clock() > self._deadline:
            self.close()

    def close(self) -> None:
        """Drop the connection."""
        if not self.is_over:
            self.is_over = True
            self._selector.unregister(self._channel.input)
            self._channel.close()

    def _on_input(self) -> None:
        data = self._channel.read()
        if data is None:
            return
        self._data += data
        line, found, _ = self._data.partition(b"\n")
        if found:
            self._judge(line)
        elif not data or len(self._data) > _LONGEST:
            self.close()

    def _judge(self, line: bytes) -> None:
        """Continue the session over this connection if the line proves that the controller wants it."""
        from ..shared.protocol import validate
        from ..shared.requests import RESUMING

        try:
            message = decode(line)
            validate(message, RESUMING, "do")
        except ProtocolError:
            self.close()
            return
        got, nonces = message["got"], (self._nonce, message["nonce"])
        if not (
            is_proof(message["proof"], self._secret, "controller", nonces, got) and self._session.log.can_resume(got)
        ):
            self.close()
            return
        self.is_over = True
        self._selector.unregister(self._channel.input)
        mine = self._session.got
        resumed: Resumed = {"t": "resumed", "proof": proof(self._secret, "agent", nonces, mine), "got": mine}
        self._session.resume(self._channel, encode(resumed), got)
