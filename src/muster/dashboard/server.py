"""The dashboard's server: on 127.0.0.1 only, read-only, and only for those who know its token."""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from muster.controller.debug_log import internal_error
from muster.dashboard.job_list import JobList
from muster.dashboard.routes import Answer, NotThere, redirect, route
from muster.jobs.kept_files import open_regular

_MOST_CONNECTIONS = 64
"""At a time; a browser opens six."""

_MOST_OF_OTHERS = 16
"""Connections at a time of other users of this machine that have not shown the token."""

_IDLE = 20.0
"""Seconds after which a connection is closed that sends nothing or takes nothing."""

_REQUEST_LIMIT = 10.0
"""Seconds for a request to be complete, however slowly it comes, on a connection that has not shown the token yet."""

_PIECE = 1 << 18
"""Bytes of a file that are sent at a time."""

_OURS = ("127.0.0.1", "localhost", "[::1]")
"""Names that this server answers to. Their port may be another one, as through `ssh -L`; any other name comes from a
web page that has pointed its own name at this machine (DNS rebinding)."""

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


class _Stranger(NamedTuple):
    """A connection that has not shown the token."""

    limit: float
    """When it is closed."""
    is_ours: bool
    """Whether it comes from a process of the user of the dashboard."""


class DashboardServer(ThreadingHTTPServer):
    """Answers requests about jobs, each connection in a thread of its own."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, token: str, jobs: JobList, stays: float | None = None) -> None:
        """`stays` is for how many seconds after its last reader the server lives on when the job has ended."""
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.token = token
        self.jobs = jobs
        self.stays = stays
        self.last_request = time.monotonic()
        """When somebody who knows the token last sent a request."""
        self._strangers: dict[socket.socket, _Stranger] = {}
        """Connections that have not shown the token, the oldest first."""
        self._readers: set[socket.socket] = set()
        """Connections that have shown it."""
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; where too many are open, the oldest without the token makes room.

        Other users of this machine have a limit of their own, so that they cannot shut out the user of the dashboard.
        """
        is_ours = user_of(client_address, self.server_address) in (os.getuid(), None)
        with self._lock:
            others = [peer for peer, known in self._strangers.items() if not known.is_ours]
            is_full = len(self._strangers) + len(self._readers) >= _MOST_CONNECTIONS
            if (not is_ours and len(others) >= _MOST_OF_OTHERS) or (is_full and self._strangers):
                self._hang_up((others or [*self._strangers])[0])
            has_room = len(self._strangers) + len(self._readers) < _MOST_CONNECTIONS
            if has_room:
                self._strangers[request] = _Stranger(time.monotonic() + _REQUEST_LIMIT, is_ours)
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._strangers.pop(request, None)
                self._readers.discard(request)

    def service_actions(self) -> None:
        """Close connections whose request has taken too long; called about twice a second."""
        now = time.monotonic()
        with self._lock:
            for stranger in [peer for peer, known in self._strangers.items() if known.limit < now]:
                self._hang_up(stranger)

    def knows_token(self, connection: socket.socket) -> None:
        """A connection has shown the token."""
        self.last_request = time.monotonic()
        with self._lock:
            if self._strangers.pop(connection, None) is not None:
                self._readers.add(connection)

    def _hang_up(self, stranger: socket.socket) -> None:
        """Wake the thread of a connection, which then ends."""
        del self._strangers[stranger]
        try:
            stranger.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has gone by itself

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that leaves in the middle of an answer is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: DashboardServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = _IDLE
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer, if the request may be answered."""
        self._answer(self._judge())

    def do_HEAD(self) -> None:
        """Answer a request without the body."""
        self._answer(self._judge())

    def version_string(self) -> str:
        """The Server header; it does not name the Python version."""
        return "muster"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the job, and addresses contain the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class does not understand gets a plain answer, which repeats nothing of the request."""
        self.close_connection = True
        self._answer(_refused(HTTPStatus(code), message or HTTPStatus(code).phrase))

    def _judge(self) -> Answer:
        host = self.headers.get("Host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name not in _OURS or len(self.headers.get_all("Host", [])) != 1:
            return _refused(HTTPStatus.FORBIDDEN, "this dashboard answers to 127.0.0.1 and localhost only")
        parts = urlsplit(self.path)
        _, token, *rest = parts.path.split("/", 2) if parts.path.startswith("/") else ("", "")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return _refused(HTTPStatus.FORBIDDEN, "the address lacks its token; open the address that `muster` printed")
        self.server.knows_token(self.connection)
        if not rest:  # the links are relative to a directory
            return redirect(f"/{token}/")
        try:
            return route(self.server.jobs, rest[0], parts.query, stays=self.server.stays)
        except NotThere as error:
            return _refused(HTTPStatus.NOT_FOUND, str(error))
        except Exception as error:
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, internal_error(error))

    def _answer(self, answer: Answer) -> None:
        if answer.file is not None:
            self._send_file(answer)
            return
        self._send_head(answer, len(answer.body))
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _send_head(self, answer: Answer, length: int) -> None:
        self.send_response(answer.status)
        for name, value in {**_HEADERS, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send_file(self, answer: Answer) -> None:
        """A file as far as it has been written; it may grow meanwhile."""
        assert answer.file is not None
        self.close_connection = True
        try:
            file = open_regular(answer.file)
        except OSError as error:
            self._answer(_refused(HTTPStatus.NOT_FOUND, f"could not read the log: {error.strerror or error}"))
            return
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            self._send_head(answer, size)
            while self.command != "HEAD" and (data := file.read(min(_PIECE, size))):
                self.wfile.write(data)
                size -= len(data)


def user_of(client: tuple[str, int], server: Any) -> int | None:
    """The user of the process at the other end of a connection on this machine; None if the kernel does not say."""
    near, far = _kernel_name(client), _kernel_name(server)
    try:
        with open("/proc/net/tcp", encoding="ascii") as table:
            return next((int(row[7]) for row in map(str.split, table) if row[1] == near and row[2] == far), -1)
    except OSError:
        return None


def _kernel_name(address: tuple[str, int]) -> str:
    """An address as /proc/net/tcp has it."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


def _refused(status: HTTPStatus, why: str) -> Answer:
    return Answer(status=status, kind="application/json", body=json.dumps({"error": why}).encode())
