"""The kinds of connections from an agent to its controller: pipes of a transport, or a socket."""

from __future__ import annotations

import os
import select

from ..shared import light_socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl


_KIND, _SOCKET = 0o170000, 0o140000
"""The bits of a mode that say what kind of file it is, and their value for a socket."""


class Pipes:
    """Two descriptors that a transport such as ssh connects to the controller."""

    def __init__(self, input: int, output: int) -> None:
        # Two descriptors also for a socket, because the selector watches one for reading and one for writing.
        self.input, self.output = os.dup(input), os.dup(output)
        os.set_blocking(self.output, False)
        is_socket = os.fstat(self.input).st_mode & _KIND == _SOCKET
        self._socket = socket.socket(fileno=self.input) if is_socket else None
        self.given: list[int] = []
        """The last descriptor that came with the data, as it can over the socket to an agent on the same machine."""

    def read(self) -> bytes | None:
        """Read available data; empty if the other end has closed."""
        try:
            return os.read(self.input, 1 << 16) if self._socket is None else self._receive(self._socket)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _receive(self, connection: socket.socket) -> bytes:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if descriptors:
            for old in self.given:
                os.close(old)
            self.given = descriptors
        return data

    def write(self, data: bytes | bytearray) -> int:
        """Write what fits now, or raise BlockingIOError."""
        return os.write(self.output, data)

    def is_gone(self) -> bool:
        """Whether nobody reads what is written, so that the connection has not only been closed for input."""
        poll = select.poll()
        poll.register(self.output, 0)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close both descriptors."""
        if self._socket is not None:
            self._socket.detach()
        os.close(self.input)
        os.close(self.output)


class Tls:
    """A TLS connection that the agent opened."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        import ssl

        self._not_yet = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._connection = connection
        self.given: list[int] = []
        """No descriptor can come over a network."""
        self.peer: str = connection.getpeername()[0]
        """The address of the controller that works."""
        connection.setblocking(False)
        # Two descriptors of one socket, because the selector watches one for reading and one for writing.
        self.input, self.output = connection.fileno(), os.dup(connection.fileno())

    def read(self) -> bytes | None:
        """Read available data; None if there is no complete TLS record, empty if the other end has closed."""
        data = bytearray()
        try:
            while True:
                piece = self._connection.recv(1 << 16)
                if not piece:
                    return bytes(data)
                data += piece
                if not self._connection.pending():  # already decrypted data would not wake a selector
                    return bytes(data)
        except self._not_yet:
            return bytes(data) or None
        except OSError:
            return b""

    def write(self, data: bytes | bytearray) -> int:
        """Write what fits now, or raise BlockingIOError."""
        try:
            return self._connection.send(data)
        except self._not_yet:
            raise BlockingIOError from None

    def is_gone(self) -> bool:
        """A TLS connection is never closed in one direction only."""
        return True

    def close(self) -> None:
        """Close the connection."""
        os.close(self.output)
        self._connection.close()
