"""Frames of a WebSocket, as `exec` of Kubernetes uses them: the first byte of a message is the number of a channel."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import quote, urlencode

from muster.engines.kubernetes.pod_reasons import part, parts

STDIN, STDOUT, STDERR, STATUS = range(4)
"""The channels."""

PIECE = 1 << 15
"""Maximum number of bytes of one frame, as of kubectl."""

_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_LARGEST_HEAD = 1 << 16
_LARGEST_FRAME = 1 << 26


class WebSocketError(Exception):
    """The server does not speak the protocol."""


def request(namespace: str, pod: str, container: str, command: Sequence[str]) -> bytes:
    """The request to run a command in a pod, through `kubectl proxy`, which adds the user's credentials."""
    wanted = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query = urlencode([*(("command", word) for word in command), *wanted], quote_via=quote)
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{query}"
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        "Sec-WebSocket-Protocol: v5.channel.k8s.io, v4.channel.k8s.io\r\n\r\n"
    ).encode()


def frames(data: bytes) -> bytes:
    """Data for the command's stdin."""
    pieces = (data[at : at + PIECE] for at in range(0, len(data), PIECE))
    return b"".join(_frame(_BINARY, b"\0" + piece) for piece in pieces)


def close_frame() -> bytes:
    """The frame that ends the connection."""
    return _frame(_CLOSE, struct.pack(">H", 1000))


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x80 | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, 0x80 | 127, size)
    # The mask of a client keeps scripts of web pages from choosing bytes on the wire. All zeros changes nothing.
    return head + bytes(4) + payload


class Messages:
    """Parses what the server sends: the answer to the request, then messages."""

    def __init__(self) -> None:
        self.status: int | None = None
        """The HTTP status; None until the answer is complete."""
        self.refusal = ""
        """Why the server refused, if the status is not 101."""
        self.replies = b""
        """Frames to send back: answers to pings."""
        self._data = bytearray()
        self._partial = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether the server has agreed."""
        return self.status == 101

    def feed(self, data: bytes) -> Iterator[tuple[int | Literal["close"], bytes]]:
        """Yield each complete message with its channel, then `close` if the server ends the connection."""
        self._data += data
        if not self.is_open and not self._read_head(at_end=not data):
            return
        while True:
            frame = self._read_frame()
            if frame is None:
                return
            is_last, opcode, payload = frame
            if opcode == _CLOSE:
                yield "close", payload
                return
            if opcode == _PING:
                self.replies += _frame(_PONG, payload)
            elif opcode in (0, 1, _BINARY):
                self._partial += payload
                if len(self._partial) > _LARGEST_FRAME:
                    raise WebSocketError("a message is too large")
                if is_last and self._partial:
                    message, self._partial = bytes(self._partial), bytearray()
                    yield message[0], message[1:]

    def _read_head(self, *, at_end: bool) -> bool:
        """Whether the server has agreed; what follows a refusal is its reason, which may come later than the head."""
        head, found, rest = bytes(self._data).partition(b"\r\n\r\n")
        if not found:
            if len(self._data) > _LARGEST_HEAD:
                raise WebSocketError("the answer to exec is too long")
            return False
        match = re.match(rb"HTTP/1\.\d (\d{3})", head)
        if match is None:
            raise WebSocketError("the answer to exec is not HTTP")
        size = re.search(rb"(?i)\r\ncontent-length: *(\d{1,5})\r\n", head + b"\r\n")
        if size is not None and len(rest) < int(size.group(1)) and not at_end:
            return False
        self.status = int(match.group(1))
        if not self.is_open:
            self.refusal = reason_in(rest) or head.partition(b"\r\n")[0].decode(errors="replace")
            return False
        self._data = bytearray(rest)
        return True

    def _read_frame(self) -> tuple[bool, int, bytes] | None:
        data = self._data
        if len(data) < 2:
            return None
        size, at = data[1] & 0x7F, 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            if len(data) < 2 + wide:
                return None
            size, at = int.from_bytes(data[2 : 2 + wide], "big"), 2 + wide
        if size > _LARGEST_FRAME or data[1] & 0x80:
            raise WebSocketError("a frame is too large or masked")
        if len(data) < at + size:
            return None
        frame = bool(data[0] & 0x80), data[0] & 15, bytes(data[at : at + size])
        del data[: at + size]
        return frame


def reason_in(body: bytes) -> str:
    """The message of a Status object in the body of an answer; empty if there is none."""
    start = body.find(b"{")
    try:
        message = part(json.loads(body[start : body.rfind(b"}") + 1])).get("message") if start >= 0 else None
    except (ValueError, RecursionError):
        message = None
    return str(message) if message else body.decode(errors="replace").strip()[:300]


def exit_code(status: bytes) -> tuple[int | None, str]:
    """The exit code and the message of the status at the end; no code if the command's end is not known.

    A success proves nothing: it also comes when a kubelet or containerd is restarted.
    """
    try:
        found = part(json.loads(status))
        if found.get("status") == "Success":
            return 0, ""
        causes = parts(found, "details", "causes")
        code = next((int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"), None)
        return code, "" if code is not None else str(found.get("message") or "")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, status.decode(errors="replace")[:300]
