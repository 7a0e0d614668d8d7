"""One host's connection: the channel to its agent over a transport's process, and its heartbeat."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from muster.agent.wire import GREETING, LEASE, LineReader, encode
from muster.errors import HostError, MusterError
from muster.logs.lines import LineSplitter
from muster.run.child import Child
from muster.transports import Command, explain_ssh_failure

SUSPECT_AFTER = 1.5
"""Seconds of silence after which the screen names the host; LEASE decides."""

Result = TypeVar("Result")


class LinkLost(HostError):
    """The connection to a host that was up is gone."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(host, why)
        self.why = why


class AgentLink:
    """The controller's handle on one agent."""

    def __init__(
        self,
        command: Command,
        on_event: Callable[[AgentLink, dict[str, Any]], None],
        on_text: Callable[[AgentLink, str], None],
        *,
        name: str | None = None,
    ) -> None:
        self.command = command
        self.name = name or command.host.name
        self.facts: dict[str, Any] = {}
        """What the agent said of its host; empty until it is up."""
        self.clock_offset = 0.0
        """This host's clock minus ours, in seconds; from the ping with the shortest way."""
        self.lost: LinkLost | None = None
        self._on_event = on_event
        self._on_text = on_text
        self._child: Child | None = None
        self._reader = LineReader(greeting=GREETING)
        self._stderr = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._splitter = LineSplitter()
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._closing = False
        self._suspected = False
        self._last_heard = time.monotonic()
        self._round_trip = float("inf")
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._explaining: asyncio.Task[None] | None = None

    # --- coming up ------------------------------------------------------------------------------------------

    async def open(self, payload: bytes, limit: float) -> None:
        """Start the transport, send the agent, and wait until it says what host it is on."""
        try:
            self._child = Child(
                self.command.argv, on_data=self._on_data, on_words=self._on_words, on_closed=self._on_closed
            )
        except OSError as error:
            raise HostError(
                self.name,
                f"`{self.command.argv[0]}` cannot be started ({error.strerror})",
                hint="install the OpenSSH client" if self.command.over_ssh else "name a Python with `--python PATH`",
            ) from None
        self._child.send(payload)
        error = HostError(
            self.name,
            f"no agent answered within {limit:.0f} s of logging in",
            hint="is its home folder or its Python on a file system that hangs?",
        )
        await within(limit, self._up, error)

    def _on_data(self, data: bytes) -> None:
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
            # Good to the time a message takes, until the first ping comes back.
            self.clock_offset = message["time"] - time.time()
            if not self._up.done():
                self._up.set_result(None)
        elif message["t"] == "failed":
            self._lose(f"its agent failed ({message['error']}), which is a bug of Muster")
        else:
            self._on_event(self, message)

    def _on_words(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self._stderr = (self._stderr + text)[-16_000:]
        for line in self._splitter.feed(text):
            if self.facts and not self._closing and line.text.strip():
                self._on_text(self, line.text)

    def _on_closed(self) -> None:
        self._explaining = asyncio.ensure_future(self._explain_end())

    async def _explain_end(self) -> None:
        """The agent's side of the channel closed: find out why from how the transport ended."""
        assert self._child is not None
        code = await self._child.exit_code(2.0)
        said = self._stderr.strip() or self._reader.noise.decode(errors="replace").strip()  # nologin speaks on stdout
        self._gone.set()
        if self._closing:
            return
        if self._up.done():
            self._lose("the connection to it broke" if self.command.over_ssh else "its agent died")
        elif self.command.over_ssh:
            self._up.set_exception(explain_ssh_failure(self.command.host, code, said))
        else:
            last = said.splitlines()[-1:] or [f"it ended with code {code}"]
            self._up.set_exception(
                HostError(self.name, f"the agent did not start: {last[0]}", hint="name a Python with `--python PATH`")
            )

    # --- while it is up -------------------------------------------------------------------------------------

    async def request(self, do: str, *, limit: float, **fields: Any) -> dict[str, Any]:
        """Ask the agent for something and wait for its reply, at most `limit` seconds."""
        if self.lost:
            raise self.lost
        self._next_id += 1
        reply = self._replies[self._next_id] = asyncio.get_running_loop().create_future()
        self._send({"do": do, "id": self._next_id, **fields})
        return await within(limit, reply, LinkLost(self.name, f"no answer to `{do}` within {limit:.0f} s"))

    def beat(self) -> None:
        """Send a ping, and notice how long nothing has been heard."""
        if self.lost or not self.facts:
            return
        self._send({"do": "ping", "id": 0, "sent": time.time()})
        silence = self.silence
        if silence > LEASE:
            self._lose(f"nothing heard from it for {silence:.0f} s: it is off, hangs, or its network is cut")
        elif silence > SUSPECT_AFTER and not self._suspected:
            self._suspected = True
            self._on_event(self, {"t": "silent"})
        elif silence < SUSPECT_AFTER and self._suspected:
            self._suspected = False
            self._on_event(self, {"t": "heard"})

    @property
    def silence(self) -> float:
        """Seconds since anything came from the host."""
        return time.monotonic() - self._last_heard

    def excuse(self, seconds: float) -> None:
        """Do not hold against the host what was our own delay."""
        self._last_heard += seconds

    def our_time(self, theirs: float) -> float:
        """A time of this host's clock as ours would have shown it."""
        return theirs - self.clock_offset

    def _on_pong(self, message: dict[str, Any]) -> None:
        now = time.time()
        round_trip = now - message["sent"]
        if 0 <= round_trip <= self._round_trip:
            self._round_trip = round_trip
            self.clock_offset = message["time"] - (message["sent"] + now) / 2

    def _send(self, message: dict[str, Any]) -> None:
        if self._child is not None:
            self._child.send(encode(message))

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = LinkLost(self.name, why)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self.lost)
        self._replies.clear()
        self._gone.set()
        self._on_event(self, {"t": "lost"})
        self._drop()

    # --- the end --------------------------------------------------------------------------------------------

    async def close(self, limit: float) -> None:
        """Say goodbye and wait until the agent has ended what is left; drop the transport if it takes too long."""
        self._closing = True
        if self.facts and not self.lost:
            self._send({"do": "bye", "id": 0})
            await asyncio.wait([asyncio.ensure_future(self._gone.wait())], timeout=limit)
        self._drop()

    def _drop(self) -> None:
        # A local agent is not killed: it sees its channel close and ends its ranks before it goes.
        if self._child is not None:
            self._child.close(kill=self.command.over_ssh)


async def within(limit: float, future: asyncio.Future[Result], error: Exception) -> Result:
    """Wait for a future, or raise `error` when the time is over.

    Not asyncio.wait_for, which up to Python 3.11 swallows a cancel that comes together with the result.
    """

    def too_late() -> None:
        if not future.done():
            future.set_exception(error)

    timer = asyncio.get_running_loop().call_later(limit, too_late)
    try:
        return await future
    finally:
        timer.cancel()


async def all_or_errors(what: Sequence[Awaitable[Result]]) -> list[Result]:
    """Await everything, then raise: one failure as it is, several as one error that names each host."""
    results = await asyncio.gather(*what, return_exceptions=True)
    told: list[MusterError] = []
    good: list[Result] = []
    for result in results:
        if isinstance(result, MusterError):
            told.append(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            good.append(result)
    if len(told) == 1:
        raise told[0]
    if told:
        lines = "\n".join(f"  {error.message}" for error in told)
        hints = dict.fromkeys(error.hint for error in told if error.hint)
        raise MusterError(
            f"{len(told)} of {len(what)} hosts cannot be used\n{lines}", hint="\n      ".join(hints) or None
        )
    return good
