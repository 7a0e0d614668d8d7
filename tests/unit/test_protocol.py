"""Every message of the protocol: its definition, its validation on arrival, and who sends and takes it."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import messages
import pytest
from sample_status import make_status
from tools.protocol_page import tables

from muster.agent import guard as agent_guard
from muster.agent.agent import Agent
from muster.controller.agents import Agents
from muster.controller.attempt import Attempt
from muster.controller.draining import Drain
from muster.controller.events import EventStream, Guard
from muster.controller.host_events import HostEvents
from muster.controller.links.link import AgentLink
from muster.controller.monitor.job_server import _parsed
from muster.controller.monitor.rank_monitor import RankMonitor
from muster.controller.monitor.straggler_monitor import StragglerMonitor
from muster.engines.engine import AgentSpec
from muster.errors import HostError, MusterError
from muster.hosts import Host
from muster.jobs.job_client import _checked
from muster.jobs.job_messages import JOB_REQUESTS
from muster.shared import events, replies, reports, requests, spawner_messages
from muster.shared.protocol import annotations_of, check_reply, validate
from muster.shared.wire import GREETING, VERSION, LineReader, ProtocolError, VersionError, encode

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "muster"

OF_RANKS = {kind: {**fields, "rank": 0, "time": 1.0} for kind, fields in messages.REPORTS.items()}
TABLES: dict[str, tuple[dict[str, type], dict[str, dict[str, Any]], str]] = {
    "requests": (requests.REQUESTS, messages.REQUESTS, "do"),
    "events": (events.EVENTS, {**messages.EVENTS, **{kind: OF_RANKS[kind] for kind in reports.PASSED_ON}}, "t"),
    "reports": (reports.REPORTS, OF_RANKS, "t"),
    "orders": (spawner_messages.ORDERS, messages.ORDERS, "t"),
    "news": (spawner_messages.NEWS, messages.NEWS, "t"),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_message_validates(name: str):
    table, samples, key = TABLES[name]
    assert set(samples) == set(table)
    for kind, fields in samples.items():
        validate({**fields, key: kind}, table, key)


def test_every_reply_validates():
    assert set(messages.REPLIES) == set(replies.REPLIES)
    for request, fields in messages.REPLIES.items():
        check_reply({"re": 1, **fields}, replies.REPLIES[request], request)


@pytest.mark.parametrize("name", TABLES)
def test_a_message_that_lacks_a_required_field_is_refused(name: str):
    table, samples, key = TABLES[name]
    for kind, fields in samples.items():
        required = [f for f, note in annotations_of(table[kind]).items() if "NotRequired" not in note and f != "t"]
        for field in required:
            message = {other: value for other, value in {**fields, key: kind}.items() if other != field}
            with pytest.raises(ProtocolError, match=f"message `{kind}` lacks the field `{field}`"):
                validate(message, table, key)


OUT = {**messages.EVENTS["out"], "t": "out"}
EXIT = {**messages.EVENTS["exit"], "t": "exit"}


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({**OUT, "rank": "0"}, "message `out`: the field `rank` must be int, not '0'"),
        ({**OUT, "rank": True}, "message `out`: the field `rank` must be int, not True"),
        ({**OUT, "rank": 1.5}, "message `out`: the field `rank` must be int, not 1.5"),
        ({**OUT, "text": None}, "message `out`: the field `text` must be str, not None"),
        ({**EXIT, "stopped_at": "x"}, "message `exit`: the field `stopped_at` must be float | None, not 'x'"),
        ({**EXIT, "facts": {"memory": {}}}, "message `exit`: the field `facts` must be FailureFacts"),
        (
            {**OF_RANKS["progress"], "t": "progress", "groups": {"0": [1]}},
            "`groups` must be dict[str, tuple[int, int]]",
        ),
        ({**OF_RANKS["arrivals"], "t": "arrivals", "steps": [[1, 2.0, "x"]]}, "the field `steps`"),
        ({"t": "surprise"}, "unknown message `surprise`"),
        ({"t": ["out"]}, "unknown message `['out']`"),
        ({"t": "lost"}, "unknown message `lost`"),
        ({"t": "\x1b]0;x\x07" + "A" * 5000}, rf"unknown message `\x1b]0;x\x07{'A' * 47}...`"),
        ({"rank": 0}, "a message lacks the field `t`"),
        ([1], "a message must be a JSON object, not list"),
        (None, "a message must be a JSON object, not NoneType"),
    ],
)
def test_nonsense_is_refused_with_a_sentence_that_names_message_and_field(message: Any, sentence: str):
    with pytest.raises(ProtocolError, match=re.escape(sentence)):
        validate(message, events.EVENTS)


def test_a_literal_is_one_of_its_words():
    with pytest.raises(ProtocolError, match="reply to compare`: the field `script` must be Literal"):
        check_reply({"cwd": True, "script": "unknown"}, replies.Comparison, "compare")


def test_fields_that_are_not_known_are_ignored():
    validate({**OUT, "color": "red"}, events.EVENTS)


# --- what becomes of nonsense, and of another version ---------------------------------------------------------------


def after(*data: bytes) -> AgentLink:
    """The link to a host that has sent this."""

    async def listen() -> AgentLink:
        link = AgentLink(AgentSpec(host=Host(name="far"), name="far"), lambda *_: None, lambda *_: None)
        link.ranks = {0}
        for piece in data:
            link.on_data(piece)
        link._up.exception() if link.lost else None
        return link

    return asyncio.run(listen())


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            encode({**OUT, "text": 3}),
            "far: its agent violated the protocol: message `out`: the field `text` must be str",
        ),
        (b"[]\n", "far: its agent violated the protocol: a message must be a JSON object, not list"),
        (b'{"t": "lost"}\n', "far: its agent violated the protocol: unknown message `lost`"),
        (b'{"re": []}\n', "far: its agent violated the protocol: a message lacks the field `t`"),
        (b"Segmentation fault\n", "far: another program wrote to the agent's channel"),
        (b"[" * 100_000 + b"\n", "far: another program wrote to the agent's channel"),
        (encode({**OUT, "rank": 7}), "far: its agent violated the protocol: message `out` is about rank 7, which does"),
        (encode({**OUT, "stream": 3}), "far: its agent violated the protocol: message `out`: the field `stream` must"),
        (encode(messages.UP), "far: its agent violated the protocol: the first message, and no other, must be `up`"),
        (
            encode({**messages.EVENTS["gauges"], "t": "gauges", "ranks": {}, "time": float("nan")}),
            "far: its agent violated the protocol: message `gauges`: the field `time` must be float, not nan",
        ),
        (
            encode({"t": "signal", "number": 15, "ranks": [0, 7]}),
            "far: its agent violated the protocol: message `signal` is about rank '7', which does not run there",
        ),
    ],
)
def test_a_host_that_sends_nonsense_is_lost_with_that_sentence(message: bytes, sentence: str):
    lost = after(GREETING, encode(messages.UP), message).lost
    assert lost is not None
    assert lost.message.startswith(sentence)


@pytest.mark.parametrize("counts", [{"gpus": 1 << 40}, {"gpus": -3}, {"cpus": 1 << 60}, {"cpus": -1}])
def test_a_host_with_more_gpus_than_any_has_does_not_fill_the_memory(counts: dict[str, int]):
    lost = after(GREETING, encode({**messages.UP, **counts})).lost
    assert lost is not None
    assert lost.message.startswith("far: its agent violated the protocol: message `up`: no host has")


def test_an_agent_that_fails_does_not_fill_the_screen():
    failed = encode({"t": "failed", "error": "e" * 100_000, "traceback": ""})
    lost = after(GREETING, encode(messages.UP), failed).lost
    assert lost is not None
    assert len(lost.message) < 1000


@pytest.mark.parametrize(
    "data",
    [
        GREETING.replace(str(VERSION).encode(), b"99"),
        b"Welcome!\n" + GREETING.replace(str(VERSION).encode(), b"99"),
        GREETING + encode({**messages.UP, "protocol": 99}),
    ],
)
def test_an_agent_of_another_version_is_refused_and_both_versions_are_named(data: bytes):
    lost = after(data[:7], data[7:]).lost
    assert lost is not None
    assert lost.message == f"far: its agent uses protocol version 99, but this Muster uses version {VERSION}"


def test_a_greeting_of_another_version_that_is_cut_in_two_is_seen():
    reader = LineReader(greeting=GREETING)
    assert reader.lines(b"noise \x1emuster-ag") == []
    with pytest.raises(VersionError):
        reader.lines(b"ent 2\x1e\n")


def test_a_reply_that_is_not_as_the_protocol_has_it_fails_its_request():
    async def ask(reply: dict[str, Any]) -> None:
        link = AgentLink(AgentSpec(host=Host(name="far"), name="far"), lambda *_: None, lambda *_: None)
        link.on_data(GREETING + encode(messages.UP))
        asyncio.get_running_loop().call_soon(link.on_data, encode({"re": 1, **reply}))
        await link.request("hold", limit=20, whom="")

    with pytest.raises(
        HostError, match="far: its agent violated the protocol: message `reply to hold` lacks the field"
    ):
        asyncio.run(ask({}))
    with pytest.raises(HostError, match="far: its agent refused `hold`: unknown message"):
        asyncio.run(ask({"refused": "unknown message `hold`"}))


class HalfAgent(Agent):
    """An agent that only takes requests."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.send = self.sent.append
        self.handlers = {kind: lambda message, number: {"port": number} for kind in requests.REQUESTS}


def test_an_agent_refuses_a_request_that_is_not_as_the_protocol_has_it():
    agent = HalfAgent()
    agent.on_request({"do": "hold", "id": 3, "whom": ""})
    agent.on_request({"do": "hold", "id": 4})
    agent.on_request({"do": "dance", "id": 5})
    assert agent.sent == [
        {"re": 3, "port": 3},
        {"re": 4, "refused": "message `hold` lacks the field `whom`"},
        {"re": 5, "refused": "unknown message `dance`"},
    ]
    for nonsense in ({}, {"id": float("inf")}, {"id": "1"}, {"id": True}):
        with pytest.raises(ProtocolError, match="a request has no id"):
            agent.on_request({"do": "hold", "whom": "", **nonsense})
    with pytest.raises(ProtocolError, match="a request has no id"):
        agent.on_request([])


def test_a_request_that_fails_is_refused_and_does_not_end_the_agent():
    agent = HalfAgent()
    agent.guard = agent_guard.Guard(agent.send)
    agent.handlers["hold"] = lambda message, number: {"port": {}["port"]}
    agent.on_request({"do": "hold", "id": 3, "whom": ""})
    note, reply = agent.sent
    assert (note["t"], "KeyError" in note["traceback"]) == ("log", True)
    assert reply == {"re": 3, "refused": "KeyError: 'port'"}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"do": "state"}, ""),
        ({"do": "state", "protocol": 1, "muster": "0.1.0", "stacks": True}, ""),
        ({"do": "state", "protocol": 2, "muster": "9.9.0"}, "is Muster 9.9.0 (job protocol 2)"),
        ({"do": "state", "protocol": 2, "muster": "9.9.0"}, "this job runs Muster 0.1.0 (job protocol 1)"),
        ({"do": "dance"}, "this job does not know the request `dance`"),
        ({"do": "stop", "grace": "soon"}, "message `stop`: the field `grace` must be float | None, not 'soon'"),
    ],
)
def test_a_job_answers_other_versions_and_wrong_requests_with_a_sentence(asked: dict[str, Any], sentence: str):
    problem = ""
    try:
        _parsed(encode(asked))
    except ProtocolError as error:
        problem = str(error)
    assert sentence in problem
    assert bool(problem) == bool(sentence)


@pytest.mark.parametrize(
    ("answer", "do", "sentence"),
    [
        (b'{"ok": true}', "stop", "job j sent an invalid answer: message `reply to stop` lacks the field `said`"),
        (b"[]", "stop", "job j sent an invalid answer: the reply to `stop` must be a JSON object, not list"),
        (b"hello", "state", "job j sent an invalid answer: "),
        (b'{"stream": 1, "text": 3, "end": ""}', "follow", "the field `text` must be str, not 3"),
        (b'{"error": "not now"}', "state", "not now"),
    ],
)
def test_an_answer_of_a_job_that_is_not_as_the_protocol_has_it_is_told(answer: bytes, do: str, sentence: str):
    with pytest.raises(MusterError, match=re.escape(sentence)):
        _checked(Path("/jobs/j"), answer, do)


# --- who takes and sends messages -----------------------------------------------------------------------------------


def test_an_agent_handles_every_request_and_each_has_a_reply():
    handled = ast.unparse(ast.parse((SOURCES / "agent" / "agent.py").read_text()))
    (handlers,) = re.findall(r"self\.handlers: .* = \{(.*)\}", handled)
    assert set(re.findall(r"'(\w+)': self\.", handlers)) == set(requests.REQUESTS)
    assert {*replies.REPLIES, "session", "ping", "bye"} == set(requests.REQUESTS)


def test_an_agent_handles_every_message_of_its_spawner():
    handled = ast.unparse(ast.parse((SOURCES / "agent" / "local_ranks.py").read_text()))
    assert set(re.findall(r"'(\w+)': self\.(?:starter\.|_)on_", handled)) == set(spawner_messages.NEWS)


def test_somebody_subscribes_to_every_event():
    async def subscribed() -> set[str]:
        stream = EventStream(Guard(print))
        status, link = await asyncio.to_thread(make_status)
        halves: Any = [object.__new__(kind) for kind in (Attempt, RankMonitor, StragglerMonitor)]
        attempt, monitor, straggler = halves
        status.subscribe(stream, "")
        monitor.subscribe(stream, "")
        straggler.subscribe(stream, "")
        attempt.subscribe(stream, returns=True)
        agents = Agents.__new__(Agents)
        recovery: Any = None
        screen: Any = SimpleNamespace(warning=print, info=print)
        HostEvents(agents, stream, screen, lambda host, why: None)
        Drain(status.job.spec, agents, status, recovery, stream, print)
        return {*stream._handlers, *link._own}

    assert asyncio.run(subscribed()) == {*events.EVENTS, *tables()["local"]}


def test_a_stream_forgets_who_no_longer_wants_events():
    class Listener:
        """One who counts."""

        heard = 0

        def on_out(self, link: Any, event: Any) -> None:
            self.heard += 1

    stream = EventStream(Guard(print))
    first, second = Listener(), Listener()
    for one in (first, second):
        stream.subscribe(events.Out, one.on_out)
    link: Any = None
    stream.publish(link, OUT)
    stream.unsubscribe(first)
    stream.publish(link, OUT)
    assert (first.heard, second.heard) == (1, 2)


def literals() -> Iterator[tuple[str, str, list[str]]]:
    """Every message that the code writes down: where, its kind, and its fields."""
    for folder in ("agent", "rank", "shared", "controller"):
        for path in sorted((SOURCES / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Dict):
                    names = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
                    first = node.values[0] if names[:1] == ["t"] else None
                    if isinstance(first, ast.Constant) and str(first.value).isidentifier():
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", str(first.value), names


def test_the_code_sends_only_messages_that_are_defined():
    defined: dict[str, set[str]] = {}
    for name in ("events", "reports", "orders", "news", "hello", "resumed", "local", "to_keeper", "from_keeper"):
        for kind, message in tables()[name].items():
            defined.setdefault(kind, set()).update(annotations_of(message))
    found = list(literals())
    assert len(found) > 30
    for where, kind, fields in found:
        assert kind in defined, f"{where} sends `{kind}`, which shared/ does not define"
        assert set(fields) <= defined[kind], f"{where}: `{kind}` has other fields"


def test_the_code_asks_only_what_is_defined():
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for kind in re.findall(r"link(?:s\[0\])?\.request\(\s*\"(\w+)\"", text):
            assert kind in requests.REQUESTS, path
    client = (SOURCES / "jobs" / "job_client.py").read_text()
    assert set(re.findall(r'"do": "(\w+)"', client)) == set(JOB_REQUESTS)


def test_the_page_lists_exactly_the_messages_of_the_code():
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(kind for table in tables().values() for kind in table)
