"""The numbered lines to and from one agent, which continue over another connection if one breaks."""

from __future__ import annotations

import logging
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence

from muster.controller.links.agent_package import agent_sources
from muster.controller.links.handed_session import HandedSession
from muster.controller.links.line import Line, WayBack
from muster.shared.bootstrap import SOURCE_REQUEST
from muster.shared.line_log import LineLog
from muster.shared.wire import GREETING, LineReader, encode

_ANSWER_LIMIT = 2.0
"""Seconds for the agent to continue over a new connection before another one may be used."""

_log = logging.getLogger("muster.link")


class LinkLines:
    """Sends lines and keeps them until the agent has them; counts those that arrive."""

    def __init__(self, host: str, on_resumed: Callable[[Sequence[bytes]], None]) -> None:
        """`on_resumed` gets the lines that have arrived with a new connection."""
        self.name = f"muster-{secrets.token_hex(16)}"
        """The name by which the agent is found again."""
        self.secret = secrets.token_hex(32)
        """Known only to both sides."""
        self.got = 0
        """How many lines of the agent have arrived."""
        self.sent = LineLog()
        self.line: Line | None = None
        """The connection; None while there is none."""
        self.way_back: WayBack | None = None
        self.reader = LineReader(greeting=GREETING)
        self.is_over = False
        """Whether no further connection is wanted."""
        self._host = host
        self._on_resumed = on_resumed
        self._new: Line | None = None
        """The connection that the agent was asked to continue over."""
        self._asked = 0.0
        self._has_sources = False

    def attach(self, line: Line, payload: bytes, lease: float) -> None:
        """Use the first connection: send the agent's code over it, and the terms of the session."""
        self.line = line
        self.way_back = line.way_back
        line.send(payload)
        name, boxed, wait = "", False, 0.0
        if self.way_back is not None:
            name, boxed, wait = self.name, self.way_back.boxed, self.way_back.wait
        terms = {"lease": lease, "name": name, "secret": self.secret, "boxed": boxed, "wait": wait}
        self.send({"do": "session", "id": 0, **terms})

    def continue_over(self, line: Line, session: HandedSession) -> None:
        """Use a connection that another process has handed over, and continue its session."""
        self.line, self.way_back = line, line.way_back
        self.name, self.secret, self.got = session["name"], session["secret"], session["got"]
        self.sent.add(b64decode(session["kept"]))
        self.sent.count = session["sent"]
        self.reader = LineReader()
        self.reader.lines(b64decode(session["partial"]))

    def hand_over(self) -> HandedSession:
        """What another process needs to continue this session over the connection that it gets."""
        self.is_over = True
        if self.way_back is not None:
            self.way_back.end()
        return {
            "name": self.name,
            "secret": self.secret,
            "got": self.got,
            "sent": self.sent.count,
            "kept": b64encode(self.sent.kept).decode(),
            "partial": b64encode(self.reader.partial).decode(),
        }

    @property
    def is_steady(self) -> bool:
        """Whether there is one connection, and no attempt to replace it."""
        return self.line is not None and self._new is None and not self.is_over

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message, now or over the next connection."""
        data = encode(message)
        self.sent.add(data)
        if self.line is not None:
            self.line.send(data)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes; raises ProtocolError if one is too long."""
        lines = self.reader.lines(data)
        if self.reader.greeting is not None and SOURCE_REQUEST in self.reader.noise:
            self._send_sources()
        self.got += len(lines)
        return lines

    def _send_sources(self) -> None:
        """Send the sources to a Python of another version, once, and again what was sent before them."""
        if self.line is not None and not self._has_sources:
            self._has_sources = True
            self.reader = LineReader(greeting=GREETING)
            self.line.send(agent_sources() + self.sent.after(0))

    def reconnect(self) -> None:
        """Try to get another connection, if that is possible."""
        if self.way_back is not None:
            self.way_back.begin()

    def is_fine(self) -> None:
        """The connection works both ways, so no other is needed."""
        if self.way_back is not None and self._new is None:
            self.way_back.end()

    def drop(self) -> None:
        """Drop the connection; another one may follow."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def close(self, *, leave: bool = False) -> None:
        """Drop all connections for good, or `leave` the current one some time for what was sent."""
        self.is_over = True
        if self.way_back is not None:
            self.way_back.end()
        if leave and self.line is not None:
            self.line.leave()
        else:
            self.drop()

    def begin_resume(self, line: Line) -> bool:
        """Whether to ask the agent to continue over a new connection; from then on nothing comes over the old one."""
        now = time.monotonic()
        if self.is_over or (self._new is not None and now - self._asked < _ANSWER_LIMIT):
            return False
        if self._new is not None:
            self._new.close()
        self.drop()
        self._new, self._asked = line, now
        return True

    def failed_to_resume(self, line: Line) -> None:
        """A new connection led nowhere."""
        if line is self._new:
            self._new = None

    def resume(self, line: Line, got: int, reader: LineReader, lines: Sequence[bytes]) -> bool:
        """Continue over a new connection with an agent that has `got` lines and has sent these; False if it cannot."""
        if self.is_over or line is not self._new or not self.sent.can_resume(got):
            return False
        _log.info("%s: resumed; %d of %d lines have arrived there", self._host, got, self.sent.count)
        if self.way_back is not None:
            self.way_back.end(line)
        self.line, self._new, self.reader = line, None, reader
        line.send(self.sent.after(got))
        self.got += len(lines)
        self._on_resumed(lines)
        return True
