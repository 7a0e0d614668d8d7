"""One `kubectl proxy` on a unix socket for all requests and connections of a job.

One kubectl per pod takes 14 MB each and 0.12 s of CPU, and calls the user's credential plugin twice. The proxy does all
of it once, with the user's own login, and what goes through it needs no TLS.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from muster.engines.kubernetes import keeper
from muster.engines.kubernetes.kubectl import explain_kubectl, find_kubectl, where_options
from muster.engines.kubernetes.websocket import close_frame, frames, reason_in
from muster.errors import EXIT_MUSTER, MusterError
from muster.home import make_short_folder
from muster.shared.wire import encode

START_LIMIT = 30.0
"""Seconds for the proxy to listen."""

_REQUEST_LIMIT = 20.0
"""Seconds for one request."""

_LATE = 10.0
"""Seconds after the limit of a watch in which its end arrives, unless the connection is dead."""

_LONGEST_ANSWER = 256 << 20
"""Maximum size of an answer, or of one line of a watch, in bytes."""

_log = logging.getLogger("muster.kubernetes")

Result = TypeVar("Result")


class RequestError(Exception):
    """The API server, or the proxy, did not do what was requested."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0 without an answer."""


class Proxy:
    """A running `kubectl proxy`, and the program that keeps it."""

    def __init__(self, path: Path, last: bytes, context: str = "") -> None:
        """Start it; `path` is for its socket, `last` is what the agents get if this process is killed."""
        self.path = path
        path.unlink(missing_ok=True)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX)
        # Its filter for paths would refuse exec; its filter for hosts still accepts only localhost.
        command = (find_kubectl(), "proxy", f"--unix-socket={path}", "--reject-paths=^$", *where_options(context, None))
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", keeper.__file__, last.hex(), str(path), *command),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._said = b""
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)

    async def up(self) -> None:
        """Wait until it listens, or raise MusterError."""
        assert self._process.stderr is not None
        for _ in range(int(START_LIMIT / 0.01)):
            try:
                with self.connect():
                    # kubectl blocks when nobody reads the errors that it prints, one for each failed request.
                    asyncio.get_running_loop().add_reader(self._process.stderr, self._read_words)
                    return
            except OSError:
                pass
            self._read_words()
            if self._process.poll() is not None or b"error:" in self._said:
                break
            await asyncio.sleep(0.01)
        raise explain_kubectl(self._said.decode(errors="replace"))

    def _read_words(self) -> None:
        """Log what kubectl says, which is for its developers, and keep the end of it."""
        assert self._process.stderr is not None
        try:
            data = os.read(self._process.stderr.fileno(), 1 << 16)
        except OSError:
            return
        if data:
            self._said = (self._said + data)[-4000:]
            _log.debug("kubectl proxy: %s", data.decode(errors="replace").strip())
        else:
            self._stop_reading()

    def _stop_reading(self) -> None:
        assert self._process.stderr is not None
        asyncio.get_running_loop().remove_reader(self._process.stderr)

    def connect(self) -> socket.socket:
        """A new connection to the proxy; OSError if it does not listen."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.connect(str(self.path))
        except OSError:
            connection.close()
            raise
        return connection

    def hold(self, connection: socket.socket) -> bytes:
        """Let the keeper hold a copy of this connection to an agent; returns its key."""
        key = str(connection.fileno()).encode()
        try:
            socket.send_fds(self._socket, [(b"+" + key).ljust(keeper.SIZE)], [connection.fileno()])
        except OSError as error:  # the keeper was killed, so agents end by their lease
            _log.warning("the keeper of kubectl proxy is gone: %s", error)
        return key

    def release(self, key: bytes) -> None:
        """Let the keeper drop its copy."""
        try:
            self._socket.send((b"-" + key).ljust(keeper.SIZE))
        except OSError:
            pass

    async def get(self, path: str, send: Mapping[str, object] | None = None) -> Any:
        """The answer to a request, as JSON: GET, or POST if there is something to send; raises RequestError."""
        reader, writer = await self._ask(path, send)
        try:
            return json.loads(await within(_REQUEST_LIMIT, reader.read()))
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            raise RequestError(0, f"the answer is not complete ({_why(error)})") from None
        finally:
            writer.close()

    async def lines(self, path: str, limit: int) -> AsyncGenerator[Mapping[str, Any]]:
        """The events of a watch until the server ends it, after `limit` seconds at the latest; raises RequestError."""
        reader, writer = await self._ask(f"{path}&timeoutSeconds={limit}", None)
        end = time.monotonic() + limit + _LATE
        try:
            while line := await within(max(0.0, end - time.monotonic()), reader.readline()):
                yield cast("Mapping[str, Any]", json.loads(line))
        except asyncio.TimeoutError:
            _log.info("a watch did not end after %d s, so its connection is dead", limit)
        except (OSError, ValueError) as error:
            raise RequestError(0, str(error)) from None
        finally:
            writer.close()

    async def _ask(
        self, path: str, send: Mapping[str, object] | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request; returns the connection, at the body of a good answer."""
        # HTTP/1.0, because then the body ends with the connection and has no further format.
        body = b"" if send is None else json.dumps(send).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        head = f"{'POST' if body else 'GET'} {path} HTTP/1.0\r\nHost: localhost\r\n{kind}\r\n"
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.path), limit=_LONGEST_ANSWER)
        except OSError as error:
            raise RequestError(0, f"kubectl proxy does not answer ({error.strerror})") from None
        writer.write(head.encode() + body)
        try:
            status, refusal = await within(_REQUEST_LIMIT, _read_head(reader))
        except (OSError, IndexError, ValueError, asyncio.TimeoutError) as error:
            writer.close()
            raise RequestError(0, f"no answer ({_why(error)})") from None
        if refusal is not None:
            writer.close()
            raise RequestError(status, refusal)
        return reader, writer

    async def close(self) -> None:
        """End the proxy."""
        self._read_words()
        self._socket.close()
        for _ in range(300):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        if self._process.poll() != 0:  # the keeper does not end, or was killed
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
        self._stop_reading()
        assert self._process.stderr is not None
        self._process.stderr.close()


def start_proxy(context: str) -> Proxy:
    """Start a proxy to the cluster of a context, with a socket that only this user can reach."""
    last = frames(encode({"do": "bye", "id": 0, "code": EXIT_MUSTER})) + close_frame()
    try:
        return Proxy(make_short_folder() / f"kubectl-{secrets.token_hex(8)}", last, context)
    except OSError as error:
        raise MusterError(f"could not start kubectl proxy ({error.strerror})", hint="check /tmp") from None


async def within(limit: float, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; asyncio.TimeoutError after `limit` seconds.

    Unlike asyncio.wait_for before Python 3.12, it never loses a cancellation, after which the caller would not end.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=limit)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


def _why(error: Exception) -> str:
    """The text of an error; that of a timeout is empty."""
    return str(error) or f"timeout after {_REQUEST_LIMIT:g} s"


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, str | None]:
    """The status of an answer, and the reason if it is a refusal."""
    status = int((await reader.readline()).split()[1])
    while (await reader.readline()).strip():
        pass
    return status, reason_in(await reader.read(1 << 16)) if status >= 300 else None
