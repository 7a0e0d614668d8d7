"""The server's side of a WebSocket, with the channels of Kubernetes (`v4` and `v5.channel.k8s.io`)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from typing import NamedTuple

from kube.http_server import Connection

STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
"""The first byte of each message; CLOSE, with the number of a channel, exists from v5 on."""

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")

TEXT, BINARY, CLOSING, PING, PONG = 1, 2, 8, 9, 10
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


class Message(NamedTuple):
    """A message of a channel."""

    channel: int
    data: bytes


class WebSocket:
    """An upgraded connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def accept(cls, connection: Connection) -> WebSocket | None:
        """Upgrade a connection; nothing if the client wants no protocol that we speak."""
        headers = connection.request.headers
        offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
        protocol = next((name for name in PROTOCOLS if name in offered), None)
        if protocol is None:
            return None
        digest = hashlib.sha1(headers["sec-websocket-key"].encode() + GUID).digest()
        await connection.upgrade(
            {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Accept": base64.b64encode(digest).decode(),
                "Sec-WebSocket-Protocol": protocol,
            }
        )
        return cls(connection.reader, connection.writer)

    async def receive(self) -> Message | None:
        """The next message; nothing when the client has closed or vanished."""
        whole = b""
        while True:
            try:
                first, second = await self._reader.readexactly(2)
                data = await self._payload(second)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            kind = first & 15
            if kind == CLOSING:
                return None
            if kind == PING:
                await self._send(PONG, data)
            elif kind != PONG:
                whole += data
                if first & 128 and whole:
                    return Message(whole[0], whole[1:])

    async def _payload(self, second: int) -> bytes:
        size = second & 127
        if size == 126:
            (size,) = struct.unpack(">H", await self._reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self._reader.readexactly(8))
        mask = await self._reader.readexactly(4) if second & 128 else b"\0\0\0\0"
        return unmasked(await self._reader.readexactly(size), mask)

    async def send(self, channel: int, data: bytes) -> None:
        """Send a message."""
        await self._send(BINARY, bytes([channel]) + data)

    async def _send(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", 128 | kind, size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 128 | kind, 126, size)
        else:
            head = struct.pack(">BBQ", 128 | kind, 127, size)
        self._writer.write(head + data)
        await self._writer.drain()

    async def close(self) -> None:
        """Say goodbye and close."""
        try:
            await self._send(CLOSING, struct.pack(">H", 1000))
        except ConnectionError:
            pass
        self._writer.close()


def unmasked(data: bytes, mask: bytes) -> bytes:
    """What a client has sent, masked with four bytes."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
