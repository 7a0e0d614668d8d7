"""Connects an agent that dialed back to its controller again, without blocking the agent's loop."""

from __future__ import annotations

import errno
import json
import socket
import sys

from ..shared import light_selectors as selectors
from .channel import Tls
from .controller_session import clock
from .dial_back import hello
from .resume_socket import Claim

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

    from ..shared.requests import Session
    from .controller_session import ControllerSession
    from .dial_back import Order

_LIMIT = 2.0
"""Seconds for one connection; a new one sends its first packet sooner than an old one repeats its own."""

_TLS_LIMIT = 6.0
"""Seconds for the encryption and the proof; a controller that is stopped accepts connections and does not answer."""

_BETWEEN = 0.4
"""Seconds between two tries."""

_REFUSALS = 3
"""How often the address that worked before must refuse: then nobody listens there any more."""


class Redial:
    """Tries, one after the other, to connect to the addresses of the controller; the one that worked comes first."""

    def __init__(self, session: ControllerSession, selector: selectors.Selector, terms: Session, peer: str) -> None:
        self.is_refused = False
        self._session = session
        self._selector = selector
        self._terms = terms
        self._order: Order = vars(sys.modules["__main__"])["order"]  # what dial_back.COMMAND has read
        self._peer = peer
        self._addresses = [peer, *(address for address in self._order["addresses"] if address != peer)]
        self._refusals = 0
        self._tries = 0
        self._due = 0.0
        self._deadline = 0.0
        self._socket: socket.socket | ssl.SSLSocket | None = None
        self._claim: Claim | None = None

    def step(self) -> None:
        """Begin or give up a try, if it is time."""
        now = clock()
        if self._claim is not None:
            self._claim.step()
            if self._claim.is_over:
                self._claim = None
        elif self._socket is not None:
            if now > self._deadline:
                self.close()
        elif now >= self._due:
            self._due = now + _BETWEEN
            self._begin(now)

    def close(self) -> None:
        """Give up the current try."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        if self._socket is not None:
            if self._socket.fileno() in self._selector.get_map():
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _begin(self, now: float) -> None:
        # Every other try is for the address that worked.
        odd = self._tries % 2 and len(self._addresses) > 1
        address = self._addresses[1 + self._tries // 2 % (len(self._addresses) - 1)] if odd else self._peer
        self._tries += 1
        self._deadline = now + _LIMIT
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        sock.setblocking(False)
        self._socket = sock
        code = sock.connect_ex((address, self._order["port"]))
        if code not in (0, errno.EINPROGRESS):
            self._failed(address, code)
        else:
            self._selector.register(sock, selectors.EVENT_WRITE, lambda: self._on_connected(address))

    def _failed(self, address: str, code: int) -> None:
        if address == self._peer:
            self._refusals = self._refusals + 1 if code == errno.ECONNREFUSED else 0
            self.is_refused = self._refusals >= _REFUSALS
        self.close()

    def _on_connected(self, address: str) -> None:
        import ssl

        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(address, code)
            return
        self._refusals = 0
        self._deadline = clock() + _TLS_LIMIT
        self._selector.unregister(self._socket)
        context = ssl.create_default_context(cadata=self._order["certificate"])
        try:
            secure = context.wrap_socket(self._socket, server_hostname="muster", do_handshake_on_connect=False)
        except OSError:
            self.close()
            return
        self._socket = secure
        self._selector.register(secure, selectors.EVENT_READ, lambda: self._shake_hands(secure))
        self._shake_hands(secure)

    def _shake_hands(self, secure: ssl.SSLSocket) -> None:
        import ssl

        try:
            secure.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except (OSError, ValueError):
            self.close()
            return
        self._selector.unregister(secure)
        self._socket = None
        first = json.dumps({**hello(self._order), "resume": self._terms["name"]}).encode() + b"\n"
        self._claim = Claim(Tls(secure), self._session, self._selector, self._terms, first)
