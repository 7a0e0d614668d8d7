"""The connection to one agent over any transport: requests and replies, events, and the heartbeat."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from muster.controller.debug_log import internal_error, log_event
from muster.controller.events import Event
from muster.controller.links.agent_requests import AgentRequests
from muster.controller.links.handed_session import HandedSession
from muster.controller.links.line import Line
from muster.controller.links.link_lines import LinkLines
from muster.controller.links.reported_ranks import check_counts, check_ranks, is_reply
from muster.controller.links.time_limit import within
from muster.engines.engine import AgentSpec
from muster.errors import EXIT_MUSTER, HostError, MusterError
from muster.shared.events import EVENTS, Failed, Pong, Up
from muster.shared.protocol import check_reply, validate
from muster.shared.replies import REPLIES
from muster.shared.wire import HEARTBEAT, LEASE, ProtocolError, VersionError, check_version, decode

SUSPECT_AFTER = 1.5
"""Seconds without a message after which the screen names the host."""

RECONNECT_AFTER = 3.0
"""Seconds without a message after which the controller also tries a new connection."""

_ACKNOWLEDGE = 1 << 20
"""Number of bytes after which the controller acknowledges them at once, because the agent keeps them until then."""

_AGEING = 1.01
"""Factor by which the shortest round trip is aged with each ping, because a clock may jump."""

_log = logging.getLogger("muster.link")
_LOGGED_FACTS = ("python", "version", "torch", "cpus", "gpus", "interfaces")


class LinkLost(HostError):
    """The connection to a host was lost after it was up."""


class AgentLink(AgentRequests):
    """The controller's handle on one agent."""

    def __init__(
        self,
        spec: AgentSpec,
        on_event: Callable[[AgentLink, Event], None],
        on_text: Callable[[str, str], None],
        lease: float = LEASE,
    ) -> None:
        """`lease` is the number of seconds without contact after which the host is lost."""
        self.spec = spec
        self.name = spec.name
        self.facts = cast("Up", {})
        """The agent's facts about its host; empty until it is up."""
        self.ranks: set[int] = set()
        """The ranks that it was asked to start, in all attempts; it cannot report about others."""
        self.clock_offset = 0.0
        """The host's clock minus the controller's, in seconds, from the ping with the shortest round trip."""
        self.lost: LinkLost | None = None
        self.closing = False
        self.killed = ""
        """How the agent was killed, if its launcher then ends those of all hosts; empty if it was not."""
        self.is_kept = False
        """Whether an earlier run has left the agent."""
        self._on_event = on_event
        self.on_text = on_text
        self.lines = LinkLines(spec.name, self._on_resumed)
        self.outage = 0.0
        """How long the last silence was, in seconds."""
        self.lease = lease
        """Seconds of silence after which the host is lost."""
        self._away = 0.0
        self._unacknowledged = 0
        self._pings: deque[tuple[int, float]] = deque()
        """The line number of each ping that is not answered yet, and when it was sent."""
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._suspected = False
        self._heard = self._last_heard = self._answered = self._ponged = time.monotonic()
        self._round_trip = self._lag = float("inf")
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

    # --- startup --------------------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        """Whether it has, or had, a connection."""
        return self.lines.sent.count > 0

    async def open(self, line: Line, payload: bytes, limit: float) -> None:
        """Use a new connection: send the agent's code over it, and wait until the agent is up."""
        self.attach(line, payload)
        why = f"no agent answered within {limit:.0f} s of logging in"
        hint = "check whether its home directory or its Python is on a file system that hangs"
        await self.came_up(limit, HostError(self.name, why, hint=hint))

    def continue_over(self, line: Line, session: HandedSession, facts: Up, next_id: int, ranks: Iterable[int]) -> None:
        """Use the connection to an agent that is up, and that another process has served until now."""
        self.lines.continue_over(line, session)
        self.facts, self.is_kept = facts, True
        self.ranks.update(ranks)
        self._next_id = next_id
        self._up.set_result(None)

    @property
    def is_idle(self) -> bool:
        """Whether the agent is up and owes no reply, so that another process can serve it."""
        is_up = bool(self.facts) and not self.lost and not self.closing
        return is_up and self.lines.is_steady and not self._replies and self.silence < SUSPECT_AFTER

    def hand_over(self) -> tuple[HandedSession, int]:
        """Leave the agent to another process; returns its session and the last number of a request."""
        self.closing = True
        self._gone.set()
        return self.lines.hand_over(), self._next_id

    def attach(self, line: Line, payload: bytes) -> None:
        """Use a connection, and send the agent's code over it."""
        self.lines.attach(line, payload, self.lease)

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
        """Replace the agent's startup timeout by `limit` seconds from now; then it fails with `error`."""
        if self._too_late is not None:
            self._too_late.cancel()
        self._too_late = asyncio.get_running_loop().call_later(limit, self.fail, error)

    def fail(self, error: MusterError) -> None:
        """Fail the startup: the agent will not come up."""
        if not self._up.done():
            self._up.set_exception(error)

    def on_data(self, data: bytes) -> None:
        """Handle bytes from the connection."""
        if self.lost:
            return
        self._on_contact()
        try:
            lines = self.lines.feed(data)
        except ProtocolError as error:
            self._on_violation(error)
            return
        self._take(lines)
        self._unacknowledged += len(data)
        if self._unacknowledged > _ACKNOWLEDGE:
            self.ping()

    def _on_contact(self) -> None:
        now = time.monotonic()
        if now - self._last_heard > SUSPECT_AFTER:
            self.outage = now - self._last_heard
            self._away += self.outage
        self._heard = self._last_heard = now

    def _take(self, lines: Sequence[bytes]) -> None:
        """Handle complete lines of the agent."""
        try:
            messages = [decode(line) for line in lines]
        except ProtocolError:
            self.lose("another program wrote to the agent's channel")
            return
        try:
            for message in messages:
                (self._on_reply if is_reply(message) else self._on_message)(message)
        except ProtocolError as error:
            self._on_violation(error)
        except Exception as error:  # unexpected values must not end the job on the other hosts
            self.lose(f"could not handle a message from its agent: {internal_error(error)}")

    def _on_violation(self, error: ProtocolError) -> None:
        self.lose(str(error) if isinstance(error, VersionError) else f"its agent violated the protocol: {error}")

    def _on_message(self, message: Any) -> None:
        validate(message, EVENTS, strict=True)
        if bool(self.facts) == (message["t"] == "up") and message["t"] != "failed":
            raise ProtocolError("the first message, and no other, must be `up`")
        check_ranks(message, self.ranks, f"message `{message['t']}`")
        own = self._own.get(message["t"])
        if own is not None:
            own(message)
        else:
            self.hand_on(message)

    def hand_on(self, event: Event) -> None:
        """Publish an event of the host."""
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
            check_ranks(message, self.ranks, f"the reply to `{do}`")
            reply.set_result(message)

    def _on_up(self, message: Up) -> None:
        check_version(message["protocol"], "its agent")
        check_counts(message["cpus"], message["gpus"])
        self.facts = message
        self._answered = self._ponged = time.monotonic()
        # Accurate to the latency of a message, until the first ping returns.
        self.clock_offset = message["time"] - time.time()
        _log.info("%s is up: %s", self.name, {name: message[name] for name in _LOGGED_FACTS if name in message})
        if not self._up.done():
            self._up.set_result(None)

    def _on_failed(self, message: Failed) -> None:
        self.lose(f"its agent failed: {internal_error(message['error'][:300], message['traceback'])}")

    def on_closed(self, line: Line) -> None:
        """A connection has been closed: by its agent, or because it broke."""
        if line is not self.lines.line or self.lost:
            return
        if self.lines.way_back is None or self.closing or not self.facts:
            self._explaining = asyncio.ensure_future(self._explain_end(line))
            return
        _log.info("%s: the connection broke", self.name)
        self.lines.drop()
        self.lines.reconnect()

    async def _explain_end(self, line: Line) -> None:
        error = await line.explain(self.noise.strip())
        self._gone.set()
        if self.closing:
            return
        if self._up.done():
            self.lose(line.why_lost)
        else:
            self._up.set_exception(error)

    def _on_resumed(self, lines: Sequence[bytes]) -> None:
        self._on_contact()
        self._answered = self._ponged = self._last_heard
        self._take(lines)
        self.ping()

    # --- while it is up -------------------------------------------------------------------------------------

    async def _ask(self, do: str, limit: float, fields: Mapping[str, object]) -> Any:
        if self.lost:
            raise self.lost
        self._next_id = number = self._next_id + 1
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[number] = do, reply
        _log.debug("%s: request %d, %s", self.name, number, do)
        self.lines.send({"do": do, "id": number, **fields})
        try:
            error = LinkLost(self.name, f"no answer to `{do}` within {limit:.0f} s")
            answer = await within(limit, reply, error, self._seconds_away)
        finally:
            self._replies.pop(number, None)
        _log.debug("%s: reply %d, %s", self.name, number, do)
        return answer

    def ping(self) -> None:
        """Send a ping, so that the agent keeps its ranks running."""
        if not (self.lost or self.closing) and self.facts:
            self._unacknowledged = 0
            now = time.monotonic()
            heard = {"got": self.lines.got, "clock": now, "heard": self._heard}
            self.lines.send({"do": "ping", "id": 0, "sent": time.time(), **heard})
            self._pings.append((self.lines.sent.count, now))

    def beat(self) -> None:
        """Send a ping, and check how long the host has been silent."""
        self.ping()
        if self.lost or self.closing or not self.facts:
            return
        silence = self.silence
        if silence > self.lease:
            self.lose(self.spec.why_silent(self.lease))
            return
        if silence > RECONNECT_AFTER or time.monotonic() - self._ponged > max(RECONNECT_AFTER, self.lease / 3):
            self.lines.reconnect()
        if silence > SUSPECT_AFTER and not self._suspected:
            self._suspected = True
            self.hand_on({"t": "host", "state": "silent"})
        elif silence < SUSPECT_AFTER and self._suspected:
            self._suspected = False
            self.hand_on({"t": "host", "state": "up"})

    @property
    def silence(self) -> float:
        """Seconds since the last message from the host."""
        return time.monotonic() - self._last_heard

    def _works_both_ways(self) -> bool:
        """Whether pongs answer recent pings, or arrive steadily behind much output; one alone may be an old one."""
        now = time.monotonic()
        since, lag = now - self._ponged, now - self._answered
        is_steady = HEARTBEAT * 0.8 < since < SUSPECT_AFTER and lag <= self._lag + 0.2
        self._ponged, self._lag = now, lag
        return lag < SUSPECT_AFTER or is_steady

    def _seconds_away(self) -> float:
        """How long the host was silent in all; a reply cannot come meanwhile."""
        return self._away + (self.silence if self.silence > SUSPECT_AFTER else 0.0)

    def excuse(self, seconds: float) -> None:
        """Subtract a delay of the controller itself from the host's silence."""
        now = time.monotonic()
        self._away += seconds
        self._last_heard = min(self._last_heard + seconds, now)
        self._answered = min(self._answered + seconds, now)
        self._ponged = min(self._ponged + seconds, now)

    def our_time(self, theirs: float) -> float:
        """Convert a time of the host's clock to the controller's clock."""
        return theirs - self.clock_offset

    @property
    def clock_error(self) -> float:
        """The maximum error of `clock_offset` in seconds: half the shortest round trip."""
        return self._round_trip / 2

    @property
    def noise(self) -> str:
        """The output before the agent's greeting, for example of a shell profile."""
        return self.lines.reader.noise.decode(errors="replace")

    def _on_pong(self, message: Pong) -> None:
        self.lines.sent.acknowledge(message["got"])
        while self._pings and self._pings[0][0] <= message["got"]:
            self._answered = max(self._answered, self._pings.popleft()[1])
        if self._works_both_ways():
            self.lines.is_fine()
        now = time.time()
        round_trip = now - message["sent"]
        self._round_trip *= _AGEING
        if 0 <= round_trip <= self._round_trip:
            self._round_trip = round_trip
            self.clock_offset = message["time"] - (message["sent"] + now) / 2

    def lose(self, why: str) -> None:
        """Give the host up; if it is only frozen or hung, its agent ends the ranks as soon as it can."""
        if self.lost:
            return
        # Without grace: replacements of its ranks may start now.
        self.lines.send({"do": "stop", "id": 0, "grace": 0, "interrupt": False})
        self.lines.send({"do": "bye", "id": 0, "code": EXIT_MUSTER})
        self.lost = LinkLost(self.name, why)
        self.fail(self.lost)
        for _, reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self.lost)
        self._replies.clear()
        self._gone.set()
        self.lines.close(leave=True)
        self.hand_on({"t": "host", "state": "lost"})

    # --- shutdown -------------------------------------------------------------------------------------------

    async def close(self, limit: float, code: int = 0) -> None:
        """Send the agent the exit code of the job, and wait for its end; drop the transport after `limit` seconds."""
        self.closing = True
        if self.facts and not self.lost:
            self.lines.send({"do": "bye", "id": 0, "code": code})
            await asyncio.wait([asyncio.ensure_future(self._gone.wait())], timeout=limit)
        self.lines.close()
