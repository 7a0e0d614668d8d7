"""The agent's loop: every question of the controller gets its answer, whatever becomes of what only looks."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import ending

from muster.agent.agent import Agent
from muster.agent.channel import Pipes
from muster.agent.controller_session import clock
from muster.agent.slow_rank_probe import NOTHING

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux"),
    pytest.mark.timeout(100),
]


class Talk:
    """An agent and the controller's end of its channel."""

    def __init__(self) -> None:
        self.near, far = socket.socketpair()
        self.near.settimeout(30)
        self.lines = self.near.makefile("r")
        self.far = far
        config: Any = {"job": "j", "scheduler": "", "attach": [], "orphaned": "", "exits_with_job": False}
        self.agent = Agent(Pipes(far.fileno(), far.fileno()), config, 1024)

    def hear(self) -> dict[str, Any]:
        self.agent.session.flush()  # as the loop does before it waits
        return json.loads(self.lines.readline())

    def close(self) -> None:
        self.agent.selector.close()
        for end in (self.lines, self.near, self.far):
            end.close()


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    yield talk
    talk.close()


@pytest.fixture
def rank() -> Iterator[Any]:
    with ending(subprocess.Popen(["sleep", "100"])) as process:
        yield SimpleNamespace(number=0, pid=process.pid, exited=False)


def test_an_examination_that_another_one_replaces_is_answered(talk: Talk, rank: Any):
    talk.agent.ranks.ranks = {0: rank}
    talk.agent.do_examine({"ranks": [0], "seconds": 60}, 1)
    talk.agent.do_examine({"ranks": [0], "seconds": 0}, 2)
    talk.agent.examine()
    assert talk.hear() == {"re": 1, **NOTHING}
    second = talk.hear()
    assert (second["re"], list(second["ranks"])) == (2, ["0"])


def test_an_examination_that_fails_is_answered_and_told_once(talk: Talk, rank: Any):
    rank.pid = [rank.pid]
    talk.agent.ranks.ranks = {0: rank}
    for _ in range(2):
        assert talk.agent.do_examine({"ranks": [0], "seconds": 60}, 1) == NOTHING
    told = talk.hear()
    assert (told["t"], told["what"]) == ("unseen", "why a rank is slow")
    assert "in do_examine" in told["traceback"]
    talk.agent.send({"t": "next"})
    assert talk.hear() == {"t": "next"}


def test_an_examination_that_fails_at_its_end_is_answered(talk: Talk, rank: Any):
    talk.agent.ranks.ranks = {0: rank}
    talk.agent.do_examine({"ranks": [0], "seconds": 0}, 1)
    assert talk.agent.examination is not None
    del talk.agent.examination._processes
    talk.agent.examine()
    assert talk.hear()["t"] == "unseen"
    assert talk.hear() == {"re": 1, **NOTHING}
    assert talk.agent.examination is None


def test_gauges_that_fail_are_reported_once_and_come_back(talk: Talk, rank: Any):
    talk.agent.usage._begin = 0.0, False
    talk.agent.usage.step(talk.agent.ranks.ranks.values())
    gauges = talk.agent.usage._gauges
    assert gauges is not None
    talk.agent.ranks.ranks = {0: rank}
    pid = rank.pid
    for rank.pid in ([pid], [pid], pid):
        gauges.due = 0.0
        talk.agent.usage.step(talk.agent.ranks.ranks.values())
    unseen, told = talk.hear(), talk.hear()
    assert (unseen["t"], unseen["what"]) == ("unseen", "the resource usage of the host and its ranks")
    assert told["ranks"]["0"]["pid"] == pid


def test_a_bug_that_ends_the_agent_is_sent_with_its_traceback(talk: Talk, monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise LookupError("sick")

    monkeypatch.setattr(talk.agent.dialing, "step", fail)
    monkeypatch.setattr(talk.agent, "stop_everything", lambda: None)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        with pytest.raises(LookupError):
            talk.agent.run()
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
    talk.lines.readline()  # the greeting
    assert talk.hear()["t"] == "up"
    failed = talk.hear()
    assert failed["error"] == "LookupError: sick"
    assert ", in turn" in failed["traceback"]


def test_why_the_agent_ends_without_being_asked_is_for_the_log(talk: Talk):
    talk.agent.end("SIGTERM")
    talk.agent.end("SIGHUP")
    talk.agent.stop_everything()
    note = talk.hear()
    assert (note["t"], note["text"]) == ("log", "the agent exits: SIGTERM")


def test_a_stop_in_the_middle_of_a_turn_is_not_silence_of_the_controller(talk: Talk, monkeypatch: pytest.MonkeyPatch):
    stopped = 0.0
    monkeypatch.setattr("muster.agent.agent.clock", lambda: clock() + stopped)

    def stop() -> None:
        nonlocal stopped
        stopped = 60.0

    monkeypatch.setattr(talk.agent.dialing, "step", stop)
    talk.agent.turn()
    talk.agent.turn()
    assert not talk.agent.ending
    assert talk.agent.session.lease.is_held(clock() + stopped)


def test_a_descriptor_that_another_handler_of_the_same_turn_closed_is_not_read(talk: Talk):
    pairs = [socket.socketpair() for _ in range(2)]
    handled: list[int] = []

    def close_other(own: int) -> None:
        handled.append(own)
        other = pairs[1 - own][0]
        talk.agent.selector.unregister(other)
        other.close()

    for number, (read, write) in enumerate(pairs):
        write.send(b"ready")
        talk.agent.selector.register(read, 1, lambda number=number: close_other(number))
    talk.agent.turn()
    assert len(handled) == 1
    for end in (end for pair in pairs for end in pair):
        end.close()


def test_nothing_is_measured_on_a_host_whose_ranks_have_ended(talk: Talk, rank: Any):
    talk.agent.usage._begin = 0.0, True
    rank.exited = True
    talk.agent.usage.step([rank])
    assert talk.agent.usage._gauges is None
    rank.exited = False
    talk.agent.usage.step([rank])
    assert talk.agent.usage._gauges is not None
    talk.agent.usage.end()


def test_a_line_that_does_not_fit_is_completed_as_soon_as_the_controller_reads(talk: Talk):
    size, arrived = 4 << 20, 0
    talk.agent.send({"t": "note", "text": "x" * size})
    talk.agent.session.flush()
    while arrived < size:
        arrived += len(talk.near.recv(size))
        for key, _ in talk.agent.selector.select(0):
            key.data()
    talk.agent.session.flush()
    assert talk.agent.selector.select(0) == [], "it watches a connection to which it has nothing to write"
