"""A session over many connections: cuts at any byte lose and repeat nothing, and strangers change nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages import UP
from waiting import ending, wait_until_async

from muster.agent import controller_session, resume_socket
from muster.agent.channel import Pipes
from muster.agent.controller_session import ControllerSession
from muster.controller.links.link import AgentLink
from muster.controller.links.link_lines import LinkLines
from muster.controller.links.reconnect import BETWEEN, Reconnect
from muster.controller.links.resuming import Resuming
from muster.engines.engine import AgentSpec
from muster.hosts import Host
from muster.shared.light_selectors import Selector
from muster.shared.protocol import validate
from muster.shared.requests import REQUESTS
from muster.shared.wire import GREETING, LineReader, encode

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux"),
    pytest.mark.timeout(100),
]


class WayBack:
    """Leaves new connections to the test."""

    boxed = False
    wait = 6.0

    def begin(self) -> None:
        pass

    def end(self, keep: object = None) -> None:
        pass


class Cable:
    """One connection; bytes arrive only when they are delivered, and it may be cut between any two of them."""

    way_back = WayBack()
    why_lost = ""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end = end
        self.there = self.back = b""
        self.is_cut = False

    def send(self, data: bytes) -> None:
        self.there += data

    def close(self) -> None:
        self.is_cut = True
        self.end.close()

    leave = close

    async def explain(self, noise: str) -> Any:
        raise AssertionError


class Pair:
    """Both sides of a session."""

    def __init__(self) -> None:
        self.selector = Selector()
        near, far = socket.socketpair()
        with far:
            far.setblocking(False)
            channel = Pipes(far.fileno(), far.fileno())
        self.ended: list[str] = []
        self.at_agent: list[Any] = []
        self.at_controller: list[Any] = []
        self.session = ControllerSession(channel, self.selector, self._on_request, self.ended.append)
        self.lines = LinkLines("far", self._on_lines)
        self.cable: Cable = Cable(near)
        self.resuming: Resuming | None = None
        self.lines.attach(self.cable, b"", 20.0)
        self.session.begin(GREETING, encode({"t": "up"}))
        self.lines.send({"do": "first"})
        self.deliver_all()

    def _on_request(self, message: Any) -> None:
        if message["do"] == "session":
            self.session.agree(message)
        elif message["do"] == "ping":
            self.session.log.acknowledge(message["got"])
            self.session.send(encode({"t": "pong", "got": self.session.got}))
        else:
            self.at_agent.append(message)

    def _on_lines(self, lines: Sequence[bytes]) -> None:
        for message in map(json.loads, lines):
            if message["t"] == "pong":
                self.lines.sent.acknowledge(message["got"])
            else:
                self.at_controller.append(message)

    def turn(self) -> None:
        """One turn of the agent's loop."""
        self.session.flush()
        for key, _ in self.selector.select(0):
            if self.selector.get_map().get(key.fd) is key:
                key.data()
        self.session.step()
        self.session.flush()

    def deliver(self, there: int, back: int) -> None:
        """Let some bytes arrive on each side."""
        cable = self.cable
        if cable.is_cut:
            return
        sent = cable.end.send(cable.there[:there]) if cable.there[:there] else 0
        cable.there = cable.there[sent:]
        self.turn()
        try:
            while data := cable.end.recv(1 << 16):
                cable.back += data
        except OSError:
            pass
        piece, cable.back = cable.back[:back], cable.back[back:]
        if not piece:
            return
        if self.resuming is None:
            self._on_lines(self.lines.feed(piece))
        elif not self.resuming.on_data(piece):
            raise AssertionError("the agent did not prove itself")
        elif self.lines.line is cable:
            self.resuming = None

    def deliver_all(self) -> None:
        for _ in range(6):
            self.deliver(1 << 20, 1 << 20)

    def reconnect(self, *, seen: bool) -> None:
        """Begin another connection; the agent has `seen` that the old one is cut, or still believes in it."""
        old = self.cable
        if self.resuming is not None:
            self.lines.failed_to_resume(old)
        if seen:
            old.close()
            self.lines.drop()
            self.turn()
        peer = socket.socket(socket.AF_UNIX)
        peer.connect("\0" + self.lines.name)
        self.cable = Cable(peer)
        self.resuming = Resuming(self.lines, self.cable)
        self.turn()

    def close(self) -> None:
        self.session.close()
        self.cable.close()
        self.selector.close()


@contextmanager
def pair() -> Iterator[Pair]:
    made = Pair()
    try:
        yield made
    finally:
        made.close()


SIZES = st.integers(0, 400) | st.just(1 << 20)
STEPS = st.lists(
    st.tuples(st.just("agent"), st.integers(1, 3))
    | st.tuples(st.just("controller"), st.integers(1, 3))
    | st.tuples(st.just("ping"), st.just(0))
    | st.tuples(st.just("deliver"), st.tuples(SIZES, SIZES))
    | st.tuples(st.just("cut"), st.booleans()),
    max_size=60,
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_cuts_at_any_byte_lose_and_repeat_no_line(steps: list[tuple[str, Any]]):
    sent: dict[str, list[Any]] = {"agent": [], "controller": []}
    with pair() as both:
        for what, how in steps:
            if what == "agent":
                new = [{"t": "out", "number": len(sent["agent"]) + each} for each in range(how)]
                both.session.send(b"".join(map(encode, new)))
                sent["agent"] += new
            elif what == "controller":
                for _ in range(how):
                    sent["controller"].append({"do": "it", "number": len(sent["controller"])})
                    both.lines.send(sent["controller"][-1])
            elif what == "ping":
                both.lines.send({"do": "ping", "got": both.lines.got})
            elif what == "deliver":
                both.deliver(*how)
            else:
                both.reconnect(seen=how)
        if both.cable.is_cut or both.resuming is not None:
            both.reconnect(seen=True)
        both.deliver_all()
        both.lines.send({"do": "ping", "got": both.lines.got})
        both.deliver_all()
        assert not both.ended
        assert both.at_agent == [{"do": "first"}, *sent["controller"]]
        assert both.at_controller == [{"t": "up"}, *sent["agent"]]
        assert both.session.log.size <= len(encode({"t": "pong", "got": both.session.got})), "kept without need"


HOSTILE = [
    b"{}\n",
    b"1\n",
    b"null\n",
    b'"resume"\n',
    b'{"do":[]}\n',
    b'{"do":"resume"}\n',
    b'{"do":"resume","nonce":"a","proof":"b","got":-1}\n',
    b'{"do":"resume","nonce":"a","proof":"b","got":true}\n',
    b'{"do":"resume","nonce":"a","proof":"\\udcff","got":1e999}\n',
    b'{"do":"resume","nonce":"a","proof":"b","got":' + b"9" * 4000 + b"}\n",
    b"[" * 4000 + b"\n",
    b"\n",
    b"x" * 5000,
]


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_stranger_says_to_the_agents_socket_the_session_continues(answer: bytes):
    with pair() as both:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(10)
            stranger.connect("\0" + both.lines.name)
            both.turn()
            stranger.sendall(answer)
            both.turn()
            both.turn()
            assert b"resumed" not in stranger.recv(1 << 16)
        both.session.send(encode({"t": "out"}))
        both.deliver_all()
        assert not both.ended
        assert both.at_controller == [{"t": "up"}, {"t": "out"}]


@pytest.mark.parametrize(
    "answer",
    [
        *HOSTILE,
        b'{"t":"challenge"}\n',
        b'{"t":"resumed","proof":"a","got":0}\n',
        b'{"t":"challenge","nonce":"a"}\n{"t":"resumed","proof":"a","got":0}\n',
        b"\x1emuster-agent 99\x1e\n",
    ],
    ids=range(len(HOSTILE) + 4),
)
def test_whatever_a_stranger_on_the_agents_socket_says_the_controller_goes_elsewhere(answer: bytes):
    with pair() as both:
        near, far = socket.socketpair()
        with near, far:
            cable = Cable(near)
            resuming = Resuming(both.lines, cable, greeting=b"bridge\n" if b"\x1e" in answer else None)
            assert not resuming.on_data(answer) or len(answer) < 10000
            assert both.lines.line is not cable
            both.lines.failed_to_resume(cable)
        both.reconnect(seen=True)
        both.deliver_all()
        assert both.lines.line is both.cable


FLOOD = """
import os, socket, sys
os.setuid(65534)
peers = []
for _ in range(200):
    peers.append(socket.socket(socket.AF_UNIX))
    peers[-1].connect("\\0" + sys.argv[1])
    peers[-1].setblocking(False)
    if len(peers) == 60:
        print("connected", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_connections_of_other_users_do_not_displace_that_of_the_controller():
    with pair() as both:
        argv = [sys.executable, "-Sc", FLOOD, both.lines.name]
        with ending(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as flood:
            assert flood.stdout is not None
            assert flood.stdin is not None
            assert flood.stdout.readline() == b"connected\n"
            both.reconnect(seen=True)
            flood.stdin.write(b"\n")
            flood.stdin.flush()
            while flood.poll() is None:
                both.turn()
            assert flood.returncode == 0
            both.deliver_all()
            assert both.lines.line is both.cable


def test_ranks_of_a_dead_controller_end_in_time_although_ssh_ended_a_little_later(monkeypatch: pytest.MonkeyPatch):
    now = controller_session.clock()
    monkeypatch.setattr(controller_session, "clock", lambda: now)
    with pair() as both:
        both.cable.end.shutdown(socket.SHUT_WR)  # the controller was killed
        both.turn()
        now += 0.9
        both.cable.end.close()  # ssh could not write the next output
        both.turn()
        assert not both.ended
        now += 5.2
        both.turn()
        assert both.ended == ["the connection broke, and the controller did not return for 6 s"]


class Counted(Reconnect):
    """Notes when it begins a connection."""

    begun: list[float]

    def __init__(self, link: AgentLink) -> None:
        super().__init__(link, [["true"]], boxed=False)
        self.begun = []

    def failed(self, line: Any) -> None:
        self.begun.append(line.begin)
        super().failed(line)


def with_link(use: Any) -> None:
    async def main() -> None:
        spec = AgentSpec(host=Host(name="far"), name="far")
        link = AgentLink(spec, lambda _, event: None, lambda _, text: None)
        link.facts = UP  # type: ignore[assignment]
        link._up.set_result(None)
        await use(link)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_connections_that_break_at_once_are_not_replaced_more_often_than_every_second():
    async def use(link: AgentLink) -> None:
        back = Counted(link)
        for count in (1, 2):
            back.begin()
            await wait_until_async("the end of a connection", lambda count=count: len(back.begun) == count)
            back.end()
        assert back.begun[1] - back.begun[0] >= BETWEEN * 0.9

    begin = time.monotonic()
    with_link(use)
    assert time.monotonic() - begin < 50


@pytest.mark.parametrize(
    ("place", "found", "leads", "lost"),
    [
        (UP["place"], True, True, None),
        (UP["place"], False, False, "far: its agent died"),
        ("another", True, False, None),
        ("another", False, False, None),
    ],
)
def test_a_bridge_leads_to_the_agent_only_on_its_own_host(place: str, found: bool, leads: bool, lost: str | None):
    async def use(link: AgentLink) -> None:
        back = Reconnect(link, [["true"]], boxed=False)
        assert back.leads_to_agent({"t": "bridge", "place": place, "found": found}) == leads
        assert (str(link.lost) if link.lost else None) == lost

    with_link(use)


def test_what_listens_on_the_agents_socket_cannot_speak_as_the_bridge():
    with pair() as both:
        near, far = socket.socketpair()
        with near, far:
            seen: list[bool] = []
            resuming = Resuming(both.lines, Cable(near), on_bridge=lambda message: not seen.append(message["found"]))
            assert resuming.on_data(b'{"t":"bridge","place":"p","found":true}\n')
            assert not resuming.on_data(b'{"t":"bridge","place":"p","found":false}\n')
            assert seen == [True]


def test_a_host_that_sends_a_line_without_end_is_lost_before_it_fills_the_memory():
    async def use(link: AgentLink) -> None:
        link.lines.reader = LineReader(greeting=GREETING, longest=1 << 20)
        link.on_data(GREETING)
        for _ in range(10):
            link.on_data(b"x" * (1 << 18))
        assert str(link.lost) == "far: its agent violated the protocol: a line has more than 1048576 bytes"

    with_link(use)


@pytest.mark.parametrize("got", [3, 10**18])
def test_a_host_that_acknowledges_lines_which_were_never_sent_is_lost(got: int):
    async def use(link: AgentLink) -> None:
        link.on_data(GREETING)
        link.ping()
        link.on_data(encode({"t": "pong", "sent": 0.0, "time": 0.0, "got": got}))
        assert str(link.lost).startswith(f"far: its agent violated the protocol: {got} lines acknowledged, but only 1")

    with_link(use)


def test_a_negative_count_acknowledges_nothing():
    async def use(link: AgentLink) -> None:
        link.on_data(GREETING)
        link.ping()
        link.on_data(encode({"t": "pong", "sent": 0.0, "time": 0.0, "got": -(10**18)}))
        assert not link.lost
        assert link.lines.sent.can_resume(0)

    with_link(use)


def test_the_ranks_of_a_host_that_is_given_up_get_no_time_beside_their_replacements():
    async def use(link: AgentLink) -> None:
        link.lose("no message from it")
        stop, bye = map(json.loads, link.lines.sent.after(0).splitlines())
        assert (stop["do"], stop["grace"], bye["do"]) == ("stop", 0, "bye")
        validate(stop, REQUESTS, "do")

    with_link(use)


def test_in_a_container_no_other_user_keeps_the_controller_out(monkeypatch: pytest.MonkeyPatch):
    users = iter([0] + [1001] * 30)
    monkeypatch.setattr(resume_socket, "_user_of", lambda connection: next(users))
    name = f"muster-test-{os.getpid()}"
    terms: Any = {"lease": 5.0, "name": name, "secret": "s", "boxed": True, "wait": 6.0}
    with closing(Selector()) as selector, ExitStack() as callers:
        listener = resume_socket.ResumeSocket(SimpleNamespace(), selector, terms)  # type: ignore[arg-type]
        for _ in range(31):
            callers.enter_context(socket.socket(socket.AF_UNIX)).connect("\0" + name)
        listener._on_connection()
        assert [claim.user for claim in listener._claims].count(0) == 1
        assert len(listener._claims) == resume_socket._MOST
        for claim in listener._claims:
            claim.close()
        listener.close()
