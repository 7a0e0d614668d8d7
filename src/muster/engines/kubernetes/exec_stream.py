"""A command in a pod over a WebSocket, with the interface of a child process: stdin, stdout, stderr and exit."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence

from muster.engines.kubernetes.pods import Pod
from muster.engines.kubernetes.proxy import Proxy
from muster.engines.kubernetes.websocket import (
    STATUS,
    STDERR,
    STDOUT,
    Messages,
    WebSocketError,
    close_frame,
    exit_code,
    frames,
    request,
)
from muster.shared.wire import Writer

_LEAVE = 2.0
"""Seconds for the last that was written to arrive."""

_log = logging.getLogger("muster.kubernetes")


class ExecStream:
    """One exec in a pod, through the proxy of the job."""

    def __init__(
        self,
        proxy: Proxy,
        pod: Pod,
        command: Sequence[str],
        *,
        on_data: Callable[[bytes], None],
        on_words: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> None:
        """Begin it; raises OSError if the proxy does not listen."""
        self.code: int | None = None
        """The exit code of the command; None while it is not known."""
        self.messages = Messages()
        self._proxy = proxy
        self._on_data, self._on_words, self._on_closed = on_data, on_words, on_closed
        self._loop = asyncio.get_running_loop()
        self._socket = proxy.connect()
        self._held: bytes | None = None
        self._is_over = self._has_ended = False
        self._early = bytearray()
        """What is to be sent when the server has agreed."""
        self._writer = Writer(self._socket.fileno(), self._socket.send)
        self._write(request(pod.namespace, pod.name, pod.container, command))
        self._loop.add_reader(self._socket.fileno(), self._read)
        _log.debug("exec in %s over connection %d", pod.name, self._socket.fileno())

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        was_open = self.messages.is_open
        try:
            for channel, payload in self.messages.feed(data):
                if self._is_over:  # closed by the receiver of a message
                    return
                if channel == STDOUT:
                    self._on_data(payload)
                elif channel == STDERR:
                    self._on_words(payload)
                elif channel == STATUS:
                    self._on_status(payload)
                elif channel == "close":
                    data = b""
        except WebSocketError as error:
            self._on_words(str(error).encode())
            data = b""
        if self._is_over:
            return
        if self.messages.is_open and not was_open:
            self._on_open()
        if self.messages.replies:
            replies, self.messages.replies = self.messages.replies, b""
            self._write(replies)
        if self.messages.refusal:
            _log.debug("exec was refused: %s", self.messages.refusal)
            self._on_words(self.messages.refusal.encode())
            self.code, data = 1, b""
        if not data:
            self._end()

    def _on_open(self) -> None:
        self._held = self._proxy.hold(self._socket)
        early, self._early = bytes(self._early), bytearray()
        self._write(frames(early))

    def _on_status(self, payload: bytes) -> None:
        self.code, message = exit_code(payload)
        if message:
            self._on_words(message.encode())
            self.code = 1

    def _end(self) -> None:
        """The connection has ended; what it means is up to the receiver."""
        if not self._is_over and not self._has_ended:
            self._has_ended = True
            self._loop.remove_reader(self._socket.fileno())
            self._on_closed()

    @property
    def unsent(self) -> bytes:
        """What was written before the server has agreed."""
        return bytes(self._early)

    def send(self, data: bytes) -> None:
        """Write to the command's stdin without blocking."""
        if not self.messages.is_open:
            self._early += data
        elif not self._is_over:
            self._write(frames(data))

    def _write(self, data: bytes = b"") -> None:
        if self._is_over:
            return
        try:
            self._writer.send(data)
        except OSError:
            self._loop.remove_writer(self._writer.fd)
            return  # reading it ends as well
        if self._writer.pending:
            self._loop.add_writer(self._writer.fd, self._write)
        else:
            self._loop.remove_writer(self._writer.fd)

    async def exit_code(self, limit: float) -> int | None:
        """The exit code; None if it is not known within `limit` seconds."""
        deadline = time.monotonic() + limit
        while self.code is None and not (self._is_over or self._has_ended) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return self.code

    def close(self, *, kill: bool = True) -> None:
        """Drop the connection; the command sees its stdin end."""
        if self._is_over:
            return
        if self.messages.is_open and not self._writer.pending:
            self._write(close_frame())
        self._is_over = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        if self._held is not None:
            self._proxy.release(self._held)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # the keeper may have a copy
        except OSError:
            pass
        self._socket.close()

    def leave(self) -> None:
        """Drop the connection in a moment, so that what was written arrives."""
        self._loop.call_later(_LEAVE, self.close)
