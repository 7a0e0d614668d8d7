"""`kubectl exec`: a command in a container, with its streams on a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from kube.container import Container, exit_code
from kube.http_server import Json
from kube.websocket import CLOSE, ERROR, STDERR, STDIN, STDOUT, WebSocket

BLOCK = 32 << 10


@dataclass(eq=False)
class ExecStream:
    """One exec, from its start until the command and all who hold its output have ended.

    What ends what was measured on Kubernetes 1.33: a client that goes away is an end of stdin and no signal, and writes
    of the command never fail afterwards; the stream ends when the command has ended and its output is closed.
    """

    container: Container
    command: Sequence[str]
    has_stdin: bool
    socket: WebSocket | None
    node_is_cut: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is set, nothing passes in either direction."""
    _input: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue[bytes](64))
    _process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Run the command."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self.container.exec_argv(self.command),
            stdin=pipe if self.has_stdin else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        assert self._process.stdout
        assert self._process.stderr
        inputs = [asyncio.create_task(self._receive()), asyncio.create_task(self._feed())]
        try:
            await asyncio.gather(
                self._pass_output(STDOUT, self._process.stdout), self._pass_output(STDERR, self._process.stderr)
            )
            code = exit_code(await self._process.wait())
            await self._uncut()
            await self._finish(exit_status(code))
        finally:
            for task in inputs:
                task.cancel()
            await asyncio.gather(*inputs, return_exceptions=True)

    async def drop(self, *, closes_stdin: bool) -> None:
        """Close the stream without a status, as a kubelet or containerd that dies: kubectl ends with 0."""
        socket, self.socket = self.socket, None
        if socket:
            await socket.close()
        if closes_stdin:
            self._close_stdin()

    async def _finish(self, status: Json) -> None:
        socket, self.socket = self.socket, None
        if socket:
            try:
                await socket.send(ERROR, json.dumps(status).encode())
                await socket.close()
            except ConnectionError:
                pass

    async def _uncut(self) -> None:
        while self.node_is_cut.is_set():
            await asyncio.sleep(0.05)

    async def _receive(self) -> None:
        socket = self.socket
        while socket and (message := await socket.receive()):  # which also answers pings, as the API server does
            if message.channel == CLOSE and message.data[:1] == bytes([STDIN]):
                await self._input.put(b"")
            elif message.channel == STDIN and message.data:
                await self._input.put(message.data)
        if self.socket is socket:  # the client went away; after `drop`, it depends on who died
            self.socket = None
            await self._input.put(b"")

    async def _feed(self) -> None:
        """Write what arrives to stdin, until nothing (b"") arrives."""
        while self._process and self._process.stdin and (data := await self._input.get()):
            await self._uncut()
            self._process.stdin.write(data)
            try:
                await self._process.stdin.drain()
            except ConnectionError:
                pass  # the command does not read any more
        await self._uncut()
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._process and self._process.stdin:
            self._process.stdin.close()

    async def _pass_output(self, channel: int, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(BLOCK):
            await self._uncut()
            if self.socket:
                try:
                    await self.socket.send(channel, data)
                except ConnectionError:
                    self.socket = None


def exit_status(code: int) -> Json:
    """The status that ends an exec."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: error executing command, exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def not_found_status(program: str) -> Json:
    """The status of an exec whose program is not in the image."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": "Internal error occurred: error executing command in container: failed to exec in container: "
        "failed to start exec: OCI runtime exec failed: exec failed: unable to start container process: exec: "
        f'"{program}": executable file not found in $PATH: unknown',
        "reason": "InternalError",
        "details": {"causes": [{"message": "error executing command in container"}]},
        "code": 500,
    }
