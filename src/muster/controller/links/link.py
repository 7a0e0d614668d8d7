"""One agent's connection, whatever it runs over: requests and replies, events, and its heartbeat."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from muster.controller.debug_log import internal_error, log_event
from muster.controller.events import Event
from muster.controller.links.agent_requests import AgentRequests
from muster.engines.engine import AgentSpec
from muster.errors import HostError, MusterError
from muster.shared.events import EVENTS, Failed, Pong, Up
from muster.shared.protocol import check_reply, validate
from muster.shared.replies import REPLIES
from muster.shared.wire import GREETING, LEASE, LineReader, ProtocolError, VersionError, check_version, encode

SUSPECT_AFTER = 1.5
"""Seconds of silence after which the screen names the host; LEASE decides."""

_AGEING = 1.01
"""By how much the shortest way counts for less with each ping: after a jump of a clock its offset is wrong."""

_log = logging.getLogger("muster.link")
_LOGGED_FACTS = ("python", "version", "torch", "cpus", "gpus", "interfaces")

Result = TypeVar("Result")


class LinkLost(HostError):
    """The connection to a host that was up is gone."""


class Line(Protocol):
    """The connection below a link: a transport's pipes, or a socket the agent dialed."""

    def send(self, data: bytes) -> None:
        """Write, now or when the other side reads."""
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...

    async def explain(self, noise: str) -> MusterError:
        """Why no agent came, found out from how the transport ended; `noise` is what came instead."""
        ...

    @property
    def why_lost(self) -> str:
        """What it means that a connection which was up has closed."""
        ...


class AgentLink(AgentRequests):
    """The controller's handle on one agent."""

    def __init__(
        self,
        spec: AgentSpec,
        on_event: Callable[[AgentLink, Event], None],
        on_text: Callable[[str, str], None],
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.facts = cast("Up", {})
        """What the agent said of its host; empty until it is up."""
        self.clock_offset = 0.0
        """This host's clock minus ours, in seconds; from the ping with the shortest way."""
        self.lost: LinkLost | None = None
        self.closing = False
        self._on_event = on_event
        self.on_text = on_text
        self._line: Line | None = None
        self._reader = LineReader(greeting=GREETING)
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._suspected = False
        self._last_heard = time.monotonic()
        self._round_trip = float("inf")
        self._replies: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._own: dict[str, Callable[[Any], None]] = {
            "up": self._on_up,
            "pong": self._on_pong,
            "failed": self._on_failed,
            "log": self._log_event,
        }
        """The events that are about the link itself."""
        self._next_id = 0
        self._explaining: asyncio.Task[None] | None = None
        self._too_late: asyncio.TimerHandle | None = None

    # --- coming up ------------------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        """Whether there is, or was, a connection below."""
        return self._line is not None

    async def open(self, line: Line, payload: bytes, limit: float) -> None:
        """Take a connection that has just been made, send the agent, and wait until it says what host it is on."""
        self.attach(line, payload)
        await self.came_up(
            limit,
            HostError(
                self.name,
                f"no agent answered within {limit:.0f} s of logging in",
                hint="check whether its home directory or its Python is on a file system that hangs",
            ),
        )

    def attach(self, line: Line, payload: bytes) -> None:
        """Take a connection and send the agent over it."""
        self._line = line
        line.send(payload)

    async def came_up(self, limit: float, error: MusterError) -> None:
        """Wait until the agent has said what host it is on, or raise `error`."""
        if self._too_late is None:
            self.allow(limit, error)
        try:
            await self._up
        finally:
            if self._too_late is not None:
                self._too_late.cancel()

    def allow(self, limit: float, error: MusterError) -> None:
        """Give the agent so many seconds from now to come up, instead of what it had; `error` is what then fails."""
        if self._too_late is not None:
            self._too_late.cancel()
        self._too_late = asyncio.get_running_loop().call_later(limit, self.fail, error)

    def fail(self, error: MusterError) -> None:
        """There will be no agent."""
        if not self._up.done():
            self._up.set_exception(error)

    def on_data(self, data: bytes) -> None:
        """Bytes came over the connection."""
        self._last_heard = time.monotonic()
        try:
            messages = self._reader.feed(data)
        except VersionError as error:
            self._lose(str(error))
            return
        except (ValueError, RecursionError):
            self._lose("another program wrote to the agent's channel")
            return
        try:
            for message in messages:
                (self._on_reply if _is_reply(message) else self._on_message)(message)
        except VersionError as error:
            self._lose(str(error))
        except ProtocolError as error:
            self._lose(f"its agent violated the protocol: {error}")
        except Exception as error:  # values that nobody can handle must not end a job that other hosts could go on with
            self._lose(f"could not handle a message from its agent: {internal_error(error)}")

    def _on_message(self, message: Any) -> None:
        validate(message, EVENTS)
        own = self._own.get(message["t"])
        if own is not None:
            own(message)
        else:
            self._hand_on(message)

    def _hand_on(self, event: Event) -> None:
        self._log_event(event)
        self._on_event(self, event)

    def _log_event(self, event: Event) -> None:
        log_event(self.name, event, self.our_time(event["time"]) if "time" in event else None)

    def _on_reply(self, message: Any) -> None:
        do, reply = self._replies.get(message["re"], ("", None))
        if reply is None or reply.done():
            return
        if "refused" in message:
            reply.set_exception(HostError(self.name, f"its agent refused `{do}`: {message['refused']}"))
        else:
            check_reply(message, REPLIES[do], do)
            reply.set_result(message)

    def _on_up(self, message: Up) -> None:
        check_version(message["protocol"], "its agent")
        self.facts = message
        # Good to the time a message takes, until the first ping comes back.
        self.clock_offset = message["time"] - time.time()
        _log.info("%s is up: %s", self.name, {name: message[name] for name in _LOGGED_FACTS if name in message})
        if not self._up.done():
            self._up.set_result(None)

    def _on_failed(self, message: Failed) -> None:
        self._lose(f"its agent failed: {internal_error(message['error'], message['traceback'])}")

    def on_closed(self) -> None:
        """The agent's side of the connection closed."""
        self._explaining = asyncio.ensure_future(self._explain_end())

    async def _explain_end(self) -> None:
        assert self._line is not None
        error = await self._line.explain(self.noise.strip())
        self._gone.set()
        if self.closing:
            return
        if self._up.done():
            self._lose(self._line.why_lost)
        else:
            self._up.set_exception(error)

    # --- while it is up -------------------------------------------------------------------------------------

    async def _ask(self, do: str, limit: float, fields: Mapping[str, object]) -> Any:
        if self.lost:
            raise self.lost
        self._next_id = number = self._next_id + 1
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[number] = do, reply
        _log.debug("%s: request %d, %s", self.name, number, do)
        self._send({"do": do, "id": number, **fields})
        try:
            answer = await within(limit, reply, LinkLost(self.name, f"no answer to `{do}` within {limit:.0f} s"))
        finally:
            self._replies.pop(number, None)
        _log.debug("%s: reply %d, %s", self.name, number, do)
        return answer

    def ping(self) -> None:
        """Let the agent hear that its job is still wanted, if it is."""
        if not (self.lost or self.closing) and self.facts:
            self._send({"do": "ping", "id": 0, "sent": time.time()})

    def beat(self) -> None:
        """Send a ping, and notice how long nothing has been heard."""
        self.ping()
        if self.lost or self.closing or not self.facts:
            return
        silence = self.silence
        if silence > LEASE:
            self._lose(f"no message from it for {silence:.0f} s; it is down or hung, or its network is cut")
        elif silence > SUSPECT_AFTER and not self._suspected:
            self._suspected = True
            self._hand_on({"t": "host", "state": "silent"})
        elif silence < SUSPECT_AFTER and self._suspected:
            self._suspected = False
            self._hand_on({"t": "host", "state": "up"})

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

    @property
    def clock_error(self) -> float:
        """How far `clock_offset` may be off, in seconds: half the shortest way there and back."""
        return self._round_trip / 2

    @property
    def noise(self) -> str:
        """What came over the connection before the agent's greeting: words of a shell profile."""
        return self._reader.noise.decode(errors="replace")

    def _on_pong(self, message: Pong) -> None:
        now = time.time()
        round_trip = now - message["sent"]
        self._round_trip *= _AGEING
        if 0 <= round_trip <= self._round_trip:
            self._round_trip = round_trip
            self.clock_offset = message["time"] - (message["sent"] + now) / 2

    def _send(self, message: Mapping[str, object]) -> None:
        if self._line is not None:
            self._line.send(encode(message))

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = LinkLost(self.name, why)
        self.fail(self.lost)
        for _, reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self.lost)
        self._replies.clear()
        self._gone.set()
        self._hand_on({"t": "host", "state": "lost"})
        self._close_line()

    # --- the end --------------------------------------------------------------------------------------------

    async def close(self, limit: float) -> None:
        """Say goodbye and wait until the agent has ended what is left; drop the transport if it takes too long."""
        self.closing = True
        if self.facts and not self.lost:
            self._send({"do": "bye", "id": 0})
            await asyncio.wait([asyncio.ensure_future(self._gone.wait())], timeout=limit)
        self._close_line()

    def _close_line(self) -> None:
        if self._line is not None:
            self._line.close()


def _is_reply(message: Any) -> bool:
    return isinstance(message, dict) and "re" in message and type(cast("Any", message)["re"]) is int


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
            f"{len(told)} of {len(what)} hosts are not usable\n{lines}", hint="\n      ".join(hints) or None
        )
    return good
