"""A small HTTP/1.1 server on asyncio: whole requests in, JSON, streams and upgraded connections out."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Json = dict[str, Any]

LARGEST_HEAD = 1 << 20
"""Bytes of a request's head; exec has the whole command line in its first line, and real servers take 1 MB."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as it arrived."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    version: str = "HTTP/1.1"

    def one(self, name: str, default: str = "") -> str:
        """The last value of a query parameter."""
        return self.query.get(name, [default])[-1]

    def flag(self, name: str) -> bool:
        """Whether a query parameter is true."""
        return self.one(name).lower() in ("true", "1")

    def json(self) -> Json:
        """The body; nothing if it is empty."""
        return json.loads(self.body) if self.body.strip() else {}


class Connection:
    """What answers one request: once as a whole, or in pieces, or by taking the connection over."""

    def __init__(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self.reader = reader
        self.writer = writer
        self.keeps_open = request.version == "HTTP/1.1" and request.headers.get("connection", "").lower() != "close"
        self._chunked = False

    async def reply(self, status: int, document: Json) -> None:
        """Answer with a JSON document."""
        data = json.dumps(document).encode() + b"\n"
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        self.writer.write(data)
        await self.writer.drain()

    async def start_stream(self, kind: str) -> None:
        """Begin an answer of unknown length."""
        self._chunked = self.request.version == "HTTP/1.1"
        self.keeps_open &= self._chunked
        headers = {"Content-Type": kind, "Cache-Control": "no-cache"}
        self._head(200, {**headers, "Transfer-Encoding": "chunked"} if self._chunked else headers)
        await self.writer.drain()

    async def write(self, data: bytes) -> None:
        """Send a piece of it."""
        if data:
            self.writer.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            await self.writer.drain()

    async def end_stream(self) -> None:
        """End it."""
        if self._chunked:
            self.writer.write(b"0\r\n\r\n")
            await self.writer.drain()

    async def upgrade(self, headers: Mapping[str, str]) -> None:
        """Leave HTTP: from now on reader and writer carry something else."""
        self.keeps_open = False
        self._head(101, headers)
        await self.writer.drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        if not self.keeps_open and status != 101:
            lines.append("Connection: close")
        self.writer.write("\r\n".join([*lines, "", ""]).encode())


Handler = Callable[[Connection], Awaitable[None]]


class HttpServer:
    """Listens on a socket that a caller has made; `kill` does to its clients what SIGKILL of a process does."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}

    async def start(self, listening: socket.socket) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=LARGEST_HEAD)

    def kill(self) -> None:
        """Close the port and break all connections at once."""
        if self._server:
            self._server.close()
            self._server = None
        for writer, task in list(self._open.items()):
            writer.transport.abort()
            if task:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        try:
            while request := await read_request(reader):
                connection = Connection(request, reader, writer)
                await self._handler(connection)
                if not connection.keeps_open:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            del self._open[writer]
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request, or nothing if the client has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, version = first.split(" ", 2)
    headers = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    body = await _read_body(reader, headers)
    split = urlsplit(target)
    query = parse_qs(split.query, keep_blank_values=True)
    return Request(method=method, path=unquote(split.path), query=query, headers=headers, body=body, version=version)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
    return body
