"""The two kinds of connections from an agent to its controller: pipes of a transport, or a socket that it opened."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl


class Pipes:
    """Descriptors 0 and 1, which a transport such as ssh connects to the controller."""

    def __init__(self) -> None:
        self.input, self.output = os.dup(0), os.dup(1)
        os.set_blocking(self.output, False)

    def read(self) -> bytes | None:
        """Read available data; empty if the other end has closed."""
        return os.read(self.input, 1 << 16)

    def write(self, data: bytes | bytearray) -> int:
        """Write what fits now, or raise BlockingIOError."""
        return os.write(self.output, data)


class Tls:
    """A TLS connection that the agent opened."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        import ssl

        self._not_yet = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._connection = connection
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
