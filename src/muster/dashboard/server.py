"""The page's server: on 127.0.0.1 only, for those who know its token, and for looking only."""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from muster.controller.debug_log import internal_error
from muster.dashboard.job_source import Source
from muster.dashboard.routes import Answer, NotThere, route

_MOST_CONNECTIONS = 64
"""At a time; a browser opens six."""

_IDLE = 20.0
"""Seconds after which a connection is closed on which nothing comes."""

_OURS = ("127.0.0.1", "localhost", "[::1]")
"""Names this server may be called by. Their port may be another one, as through `ssh -L`; any other name comes from a
page that has pointed its own name at this machine (DNS rebinding)."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """Answers requests for one job, each connection in a thread of its own."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, token: str, source: Source, stays: float | None = None) -> None:
        """`stays` is for how many seconds after its last reader the server lives on when the job has ended."""
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.token = token
        self.source = source
        self.stays = stays
        self.last_request = time.monotonic()
        """When somebody who knows the token last asked."""
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, unless too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away in the middle of an answer is no event."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = _IDLE
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer, if the question comes from somebody who may ask."""
        self._answer(self._judge())

    def do_HEAD(self) -> None:
        """Answer a request without the body."""
        self._answer(self._judge(), body=False)

    def version_string(self) -> str:
        """Who answers; what runs it is nobody's business."""
        return "muster"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the job, and addresses hold the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class does not understand gets a plain answer, which repeats nothing of the request."""
        self.close_connection = True
        self._answer(_refused(HTTPStatus(code), message or HTTPStatus(code).phrase))

    def _judge(self) -> Answer:
        host = self.headers.get("Host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name not in _OURS or len(self.headers.get_all("Host", [])) != 1:
            return _refused(HTTPStatus.FORBIDDEN, "this page answers to 127.0.0.1 and localhost only")
        parts = urlsplit(self.path)
        _, token, *rest = parts.path.split("/", 2) if parts.path.startswith("/") else ("", "")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return _refused(HTTPStatus.FORBIDDEN, "the address lacks its token; open the one `muster` printed")
        self.server.last_request = time.monotonic()
        if not rest:  # the page's own links are relative to a folder
            where = {"Location": f"/{token}/"}
            return Answer(status=HTTPStatus.PERMANENT_REDIRECT, kind="text/plain", body=b"", headers=where)
        try:
            return route(self.server.source, rest[0], parts.query, stays=self.server.stays)
        except NotThere as error:
            return _refused(HTTPStatus.NOT_FOUND, str(error))
        except Exception as error:
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, internal_error(error))

    def _answer(self, answer: Answer, *, body: bool = True) -> None:
        self.send_response(answer.status)
        for name, value in {**_HEADERS, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(answer.body)


def _refused(status: HTTPStatus, why: str) -> Answer:
    return Answer(status=status, kind="application/json", body=json.dumps({"error": why}).encode())
