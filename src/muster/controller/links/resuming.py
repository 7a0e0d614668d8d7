"""The controller's half of the proof on a new connection, after which the connection becomes that of the link."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from muster.shared.events import RESUMED, Bridge
from muster.shared.protocol import validate
from muster.shared.resume_proof import is_proof, proof
from muster.shared.wire import LineReader, ProtocolError, decode, encode

if TYPE_CHECKING:
    from muster.controller.links.line import Line
    from muster.controller.links.link_lines import LinkLines

_MOST = 1 << 16
"""Maximum number of bytes before the agent's proof."""

_log = logging.getLogger("muster.link")


class Resuming:
    """A connection to an agent that has not proved yet that it is the agent of this link."""

    def __init__(
        self,
        lines: LinkLines,
        line: Line,
        *,
        greeting: bytes | None = None,
        on_bridge: Callable[[Bridge], bool] | None = None,
    ) -> None:
        """`on_bridge` says whether the bridge, which speaks first if there is one, leads to the agent."""
        self.has_asked = False
        """Whether the agent has been asked to continue over this connection."""
        self.lines = lines
        self._line = line
        self._reader = LineReader(greeting=greeting)
        self._on_bridge = on_bridge
        self._size = 0
        self._nonces = ("", "")

    def on_data(self, data: bytes) -> bool:
        """Handle the messages before the proof; returns False if the connection is useless."""
        self._size += len(data)
        try:
            arrived = self._reader.lines(data)
        except ProtocolError:  # not the greeting of a bridge
            return False
        for number, text in enumerate(arrived):
            try:
                message = decode(text)
                validate(message, RESUMED)
            except ProtocolError:  # anybody there may listen on the agent's socket
                return False
            if message["t"] == "bridge":
                on_bridge, self._on_bridge = self._on_bridge, None
                if on_bridge is None or not on_bridge(message):
                    return False
            elif message["t"] == "challenge":
                self._ask(message["nonce"])
            else:
                return self._accept(message, arrived[number + 1 :])
        return self._size < _MOST

    def _ask(self, nonce: str) -> None:
        if not self.has_asked and self.lines.begin_resume(self._line):
            self.has_asked = True
            self._nonces = (nonce, secrets.token_hex(16))
            got = self.lines.got
            given = proof(self.lines.secret, "controller", self._nonces, got)
            self._line.send(encode({"do": "resume", "nonce": self._nonces[1], "proof": given, "got": got}))

    def _accept(self, message: Any, rest: list[bytes]) -> bool:
        good = self.has_asked and is_proof(message["proof"], self.lines.secret, "agent", self._nonces, message["got"])
        return good and self.lines.resume(self._line, message["got"], self._reader, rest)
