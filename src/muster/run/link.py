"""One host's connection: the transport's process, the channel over its pipes, and its heartbeat."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

from muster.agent.wire import GREETING, LEASE, LineReader, Writer, encode
from muster.errors import HostError, MusterError
from muster.transports import Command, explain_ssh_failure

SUSPECT_AFTER = 1.5
"""Seconds of silence after which the screen names the host; LEASE decides."""


class LinkLost(HostError):
    """The connection to a host that was up is gone."""


class AgentLink:
    """The controller's handle on one agent."""

    def __init__(
        self,
        command: Command,
        on_event: Callable[[AgentLink, dict[str, Any]], None],
        on_text: Callable[[AgentLink, str], None],
    ) -> None:
        self.command = command
        self.name = command.host.name
        self.on_event = on_event
        self.on_text = on_text
        self.facts: dict[str, Any] = {}
        self.clock_offset = 0.0
        """This host's clock minus ours, in seconds; from the ping with the shortest way."""
        self.lost: LinkLost | None = None
        self.suspected = False
        self.closing = False
        self._round_trip = float("inf")
        self._last_heard = time.monotonic()
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._stderr = ""
        self._reader = LineReader(greeting=GREETING)
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: Writer | None = None
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()

    # --- coming up ------------------------------------------------------------------------------------------

    async def open(self, payload: bytes, limit: float) -> None:
        """Start the transport, send the agent, and wait until it says what host it is on."""
        try:
            # A session of its own: Ctrl-C at the terminal is for the controller, which ends the agents in order.
            self._process = subprocess.Popen(
                self.command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise HostError(
                self.name,
                f"`{self.command.argv[0]}` cannot be started ({error.strerror})",
                hint="install the OpenSSH client" if self.command.over_ssh else "name a Python with `--python PATH`",
            ) from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        loop = asyncio.get_running_loop()
        self._writer = Writer(self._process.stdin.fileno())
        loop.add_reader(self._process.stdout.fileno(), self._on_stdout)
        loop.add_reader(self._process.stderr.fileno(), self._on_stderr)
        self._transmit(payload)
        try:
            await asyncio.wait_for(self._up, limit)
        except asyncio.TimeoutError:
            raise HostError(
                self.name,
                f"it let us in, but no agent answered within {limit:.0f} s",
                hint="is its home or Python on a file system that hangs?",
            ) from None

    def _on_stdout(self) -> None:
        assert self._process and self._process.stdout
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())
            asyncio.ensure_future(self._on_closed())
            return
        self._last_heard = time.monotonic()
        try:
            messages = self._reader.feed(data)
        except ValueError:
            self._lose("something that is not the agent writes on its channel")
            return
        for message in messages:
            self._on_message(message)

    def _on_message(self, message: dict[str, Any]) -> None:
        if "re" in message:
            reply = self._replies.pop(message["re"], None)
            if reply is not None and not reply.done():
                reply.set_result(message)
        elif message["t"] == "pong":
            self._on_pong(message)
        elif message["t"] == "up":
            self.facts = message
            if not self._up.done():
                self._up.set_result(None)
        else:
            self.on_event(self, message)

    def _on_stderr(self) -> None:
        assert self._process and self._process.stderr
        fd = self._process.stderr.fileno()
        try:
            data = os.read(fd, 1 << 16)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
            return
        text = data.decode(errors="replace")
        self._stderr = (self._stderr + text)[-16_000:]
        if self.facts and not self.closing:
            self.on_text(self, text)

    async def _on_closed(self) -> None:
        """The agent's side of the channel closed: find out why from the transport's end."""
        assert self._process
        code = await self._exit_code(2.0)
        if self.closing:
            self._gone.set()
            return
        if self._up.done():
            self._lose("the connection to it broke" if self.command.over_ssh else "its agent died")
        elif self.command.over_ssh:
            self._up.set_exception(explain_ssh_failure(self.command.host, code, self._stderr))
        else:
            last = self._stderr.strip().splitlines()[-1:] or [f"it ended with code {code}"]
            self._up.set_exception(
                HostError(self.name, f"the agent did not start: {last[0]}", hint="name a Python with `--python PATH`")
            )
        self._gone.set()

    async def _exit_code(self, limit: float) -> int | None:
        assert self._process
        deadline = time.monotonic() + limit
        while self._process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return self._process.returncode

    # --- while it is up -------------------------------------------------------------------------------------

    async def request(self, do: str, *, limit: float, **fields: Any) -> dict[str, Any]:
        """Ask the agent for something and wait for its reply, at most `limit` seconds."""
        if self.lost:
            raise self.lost
        self._next_id += 1
        reply = self._replies[self._next_id] = asyncio.get_running_loop().create_future()
        self._transmit(encode({"do": do, "id": self._next_id, **fields}))
        try:
            return await asyncio.wait_for(reply, limit)
        except asyncio.TimeoutError:
            raise HostError(self.name, f"no answer to `{do}` within {limit:.0f} s") from None

    def beat(self) -> None:
        """Send a ping, and notice how long nothing has been heard."""
        if self.lost or self.closing or not self.facts:
            return
        self._transmit(encode({"do": "ping", "id": 0, "sent": time.time()}))
        silence = self.silence
        if silence > LEASE:
            self._lose(f"nothing heard from it for {silence:.0f} s: it is off, hangs, or its network is cut")
        elif silence > SUSPECT_AFTER and not self.suspected:
            self.suspected = True
            self.on_event(self, {"t": "silent"})
        elif silence < SUSPECT_AFTER and self.suspected:
            self.suspected = False
            self.on_event(self, {"t": "heard"})

    @property
    def silence(self) -> float:
        """Seconds since anything came from the host."""
        return time.monotonic() - self._last_heard

    def excuse(self, seconds: float) -> None:
        """Do not hold against the host what was our own delay."""
        self._last_heard += seconds

    def _on_pong(self, message: dict[str, Any]) -> None:
        now = time.time()
        round_trip = now - message["sent"]
        if 0 <= round_trip <= self._round_trip:
            self._round_trip = round_trip
            self.clock_offset = message["time"] - (message["sent"] + now) / 2

    def our_time(self, theirs: float) -> float:
        """A time of this host's clock as ours would have shown it."""
        return theirs - self.clock_offset

    def _transmit(self, data: bytes = b"") -> None:
        if self._writer is None or self.lost:
            return
        try:
            self._writer.send(data)
        except OSError:
            return  # the reader has gone; stdout closing tells why
        loop = asyncio.get_running_loop()
        if self._writer.pending:
            loop.add_writer(self._writer.fd, self._transmit)
        else:
            loop.remove_writer(self._writer.fd)

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = LinkLost(self.name, why)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self.lost)
        self._replies.clear()
        self.on_event(self, {"t": "lost"})
        self.kill()

    # --- the end --------------------------------------------------------------------------------------------

    async def close(self, limit: float) -> None:
        """Say goodbye and wait for the agent to end what is left and go; kill the transport if it does not."""
        self.closing = True
        if self._process is None:
            return
        if self._up.done() and not self._up.exception() and not self.lost:
            self._transmit(encode({"do": "bye", "id": 0}))
            try:
                await asyncio.wait_for(self._gone.wait(), limit)
            except asyncio.TimeoutError:
                pass
        self.kill()

    def kill(self) -> None:
        """End the transport's process; the agent notices that its channel closed."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        loop = asyncio.get_running_loop()
        if self._writer is not None:
            loop.remove_writer(self._writer.fd)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                loop.remove_reader(stream.fileno())
        process.stdin.close()
        if self.command.over_ssh and process.poll() is None:
            process.kill()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            # A local agent that still ends its ranks: it has seen its channel close and will go by itself.
            pass
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


async def all_or_errors(what: list[Any]) -> list[Any]:
    """Await everything, then raise: one failure as it is, several as one error that names each host."""
    results = await asyncio.gather(*what, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, MusterError):
            raise error
    told = [error for error in errors if isinstance(error, MusterError)]
    if len(told) == 1:
        raise told[0]
    if told:
        lines = "\n".join(f"  {error.message}" for error in told)
        hints = dict.fromkeys(error.hint for error in told if error.hint)
        raise MusterError(f"{len(told)} of {len(what)} hosts cannot be used\n{lines}", hint="\n      ".join(hints) or None)
    return results
