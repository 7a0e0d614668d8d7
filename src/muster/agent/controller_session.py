"""The agent's lines to and from its controller, which continue over another connection if one breaks."""

from __future__ import annotations

import os
import time

from ..shared import light_selectors as selectors
from ..shared.line_log import LineLog
from ..shared.wire import LEASE, LineReader, ProtocolError, Writer
from .channel import Pipes, Tls
from .lease import Lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..shared.requests import Ping, Session
    from .redial import Redial
    from .resume_socket import ResumeSocket

_UNSENT = 1 << 20
"""Number of unsent bytes above which no output is read from ranks, because the controller is slower than they are."""

_UNACKNOWLEDGED = 8 << 20
"""The same for bytes that the controller has not acknowledged; all of them are kept to be sent again."""

_HALF_CLOSED = 1.0
"""Seconds after which input that has ended, while output has not, means that the controller itself has closed it."""

_SILENT = 3.0
"""Seconds without contact in both directions after which an agent that dials back connects again."""


def clock() -> float:
    """Seconds on a clock that also counts while this host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ControllerSession:
    """The numbered lines each way, and the connection that carries them now."""

    def __init__(
        self,
        channel: Pipes | Tls,
        selector: selectors.Selector,
        on_message: Callable[[Any], None],
        end: Callable[[str], None],
    ) -> None:
        self.log = LineLog()
        self.lease = Lease(LEASE, clock())
        self.got = 0
        """How many lines have arrived."""
        self.terms: Session | None = None
        self._selector = selector
        self._on_message = on_message
        self._end = end
        self._broken: float | None = None
        """When the connection broke; None while there is one."""
        self._ended: float | None = None
        """When the input ended."""
        self._socket: ResumeSocket | None = None
        self._redial: Redial | None = None
        self._unwritten = bytearray()
        """Lines that are written before the agent waits again: together they take each program on the way less CPU."""
        self._peer = channel.peer if isinstance(channel, Tls) else ""
        self._use(channel)

    @property
    def given(self) -> list[int]:
        """The descriptor that the controller has sent, if any; whoever takes it out closes it."""
        return self._channel.given

    def begin(self, greeting: bytes, up: bytes) -> None:
        """Send the greeting, which has no number, and the first line."""
        self._selector.register(self._channel.input, selectors.EVENT_READ, self._on_input)
        self.log.add(up)
        self._write(greeting + up)

    def agree(self, terms: Session) -> None:
        """The controller says how long it waits for this host, and how the session continues over a new connection."""
        self.lease.seconds = terms["lease"]
        if terms["name"] and isinstance(self._channel, Pipes):
            from .resume_socket import ResumeSocket

            self._socket = ResumeSocket(self, self._selector, terms)
        self.terms = terms  # now that the session can be resumed

    def send(self, data: bytes) -> None:
        """Send complete lines, now or over the next connection."""
        self.log.add(data)
        if self._broken is None and self._ended is None:
            self._unwritten += data

    def flush(self) -> None:
        """Write the lines that were sent since the last call; to be called before waiting, and at the end.

        While some do not fit, watch the connection for writing.
        """
        if self._unwritten:
            data = bytes(self._unwritten)
            self._unwritten.clear()
            self._write(data)
        if self._broken is None:
            is_watched = self._writer.fd in self._selector.get_map()
            if self._writer.pending and not is_watched:
                self._selector.register(self._writer.fd, selectors.EVENT_WRITE, self._write)
            elif is_watched and not self._writer.pending:
                self._selector.unregister(self._writer.fd)

    def on_ping(self, message: Ping) -> None:
        """The controller says how many lines it has, and when it last heard from this agent."""
        now = clock()
        self.log.acknowledge(message["got"])
        self.lease.confirmed(message["got"], message["clock"], message["heard"], now)

    def answered(self) -> None:
        """The answer to a ping has been sent."""
        self.lease.sent(self.log.count, clock())

    def resume(self, channel: Pipes | Tls, first: bytes, got: int) -> None:
        """Continue over a new connection with a controller that has `got` lines; `first` goes before the others."""
        self._drop()
        self._use(channel)
        self._broken = self._ended = None
        self._redial = None
        self._selector.register(channel.input, selectors.EVENT_READ, self._on_input)
        self._write(first + self.log.after(got))

    def is_full(self) -> bool:
        """Whether ranks must wait with their output."""
        return self._writer.pending + len(self._unwritten) > _UNSENT or self.log.size > _UNACKNOWLEDGED

    def step(self) -> None:
        """Do what is due while there is no connection, or a silent one."""
        now = clock()
        if self._ended is not None and self._channel.is_gone():
            self._break("the connection broke")
        elif self._ended is not None and now - self._ended > _HALF_CLOSED:
            if self.terms is not None and self.terms["boxed"]:  # a container program closes only the input
                self._break("the connection broke")
            else:
                self._end("the controller closed the connection")
        if self._socket is not None:
            self._socket.step()
            wait = self._socket.wait
            if self._broken is not None and now - self._broken > wait:
                self._end(f"the connection broke, and the controller did not return for {wait:g} s")
        elif self._can_resume and (self._broken is not None or now - self.lease.granted > _SILENT):
            self._dial()
        elif self._redial is not None:
            self._redial.close()
            self._redial = None

    def close(self) -> None:
        """Close what is open; lines that are still sent get lost."""
        for one in (self._socket, self._redial):
            if one is not None:
                one.close()

    @property
    def _can_resume(self) -> bool:
        """Whether the controller can connect again; before its first request it does not know that this agent is up."""
        return self.terms is not None and bool(self.terms["name"]) and self.got > 1

    def _use(self, channel: Pipes | Tls) -> None:
        self._channel = channel
        self._reader = LineReader()
        self._writer = Writer(channel.output, channel.write)

    def _write(self, data: bytes = b"") -> None:
        try:
            self._writer.send(data)
        except OSError:
            self._break("the connection broke")

    def _on_input(self) -> None:
        data = self._channel.read()
        if data is None:
            return
        if not data:
            self._selector.unregister(self._channel.input)
            self._ended = clock()
            if not self._can_resume:
                self._end("")
            elif self._channel.is_gone():
                self._break("the connection broke")
            return
        try:
            for message in self._reader.feed(data):
                self.got += 1
                self._on_message(message)
        except ProtocolError as error:
            self._end(f"the controller violated the protocol: {error}")

    def _break(self, why: str) -> None:
        """The connection is gone: wait for another one, or end."""
        if self._broken is None:
            since = clock() if self._ended is None else self._ended
            self._drop()
            self._broken = since
            if not self._can_resume:
                self._end(why)

    def hang_up(self) -> None:
        """Close the connection for good."""
        self._drop()
        self._broken = clock()

    def _drop(self) -> None:
        """Close the connection, if there is one."""
        self._writer.drop()
        self._unwritten.clear()
        if self._broken is None:
            for fd in (self._channel.input, self._channel.output):
                if fd in self._selector.get_map():
                    self._selector.unregister(fd)
            self._channel.close()
        self._ended = None

    def _dial(self) -> None:
        """Connect to the controller's port again, as at the start."""
        if self._redial is None:
            from .redial import Redial

            assert self.terms is not None
            self._redial = Redial(self, self._selector, self.terms, self._peer)
        self._redial.step()
        if self._redial.is_refused:
            self._end("the controller has exited")


def place() -> str:
    """This boot and network of this host, in which the name of an abstract socket is unique."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
