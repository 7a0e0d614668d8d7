"""The ranks of a host, as its agent holds them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import ending, wait_until

from muster.agent import stack_capture
from muster.agent.guard import Guard
from muster.agent.local_ranks import LocalRanks
from muster.agent.rank_process import Rank
from muster.agent.spawner_client import Spawner
from muster.rank.questions import SIGNAL
from muster.shared import bootstrap
from muster.shared.light_selectors import Selector

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux"),
    pytest.mark.timeout(100),
]

# It has our handler and our file, as a rank has, and never writes: C code holds its lock.
SILENT_RANK = (
    f"import signal, time; signal.signal({int(SIGNAL)}, lambda *_: None); print(1, flush=True); time.sleep(100)"
)


@pytest.fixture
def silent_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """It is waited for as long as a test takes."""
    monkeypatch.setattr(stack_capture, "_DUMP_LIMIT", 60.0)
    monkeypatch.setattr(stack_capture, "_LIMIT", 60.0)
    rank = Rank(0, {})
    process = subprocess.Popen(
        [sys.executable, "-c", SILENT_RANK], stdout=subprocess.PIPE, pass_fds=[rank.stacks], text=True
    )
    with ending(process):
        assert process.stdout is not None
        process.stdout.readline()
        rank.pid = process.pid
        yield rank
        rank.close()


def crew_of(rank: Rank, sent: list[dict[str, Any]]) -> LocalRanks:
    local_ranks = LocalRanks(Selector(), sent.append, lambda data: None, 1024, Guard(sent.append))
    local_ranks.ranks = {rank.number: rank}
    return local_ranks


def test_a_look_under_way_is_answered_before_the_next_attempt_starts(silent_rank: Rank):
    sent: list[dict[str, Any]] = []
    local_ranks = crew_of(silent_rank, sent)
    target: Any = {"kind": "script", "target": "x.py", "args": [], "path": []}
    local_ranks.prepare({"cwd": "/", "env": {}, "preload": [], "grace": 0.0, "keep": False, **target}, 4)
    spawner = local_ranks.spawner
    assert spawner is not None
    try:
        local_ranks.look({"deep": True}, 5)
        local_ranks.step()
        assert not sent, "the rank has some time to write its stacks"
        local_ranks.start({"ranks": [], "leader": True, "store": False, "fed": None})
        local_ranks.step()
        (reply,) = sent
        assert reply["re"] == 5
        assert reply["ranks"]["0"]["state"] in ("S", "R")
        assert not local_ranks.is_busy
    finally:
        os.kill(spawner.pid, signal.SIGKILL)
        os.waitpid(spawner.pid, 0)


def test_a_look_that_fails_is_answered_with_what_is_known(silent_rank: Rank):
    sent: list[dict[str, Any]] = []
    local_ranks = crew_of(silent_rank, sent)
    local_ranks.look({"deep": True}, 5)
    local_ranks.step()
    os.close(silent_rank.stacks)
    wait_until("the answer", lambda: local_ranks.step() or sent)
    silent_rank.stacks = -1
    unseen, reply = sent
    assert "in step" in unseen.pop("traceback")
    assert unseen == {"t": "unseen", "what": "where a rank is", "why": "OSError: [Errno 9] Bad file descriptor"}
    assert reply["re"] == 5
    assert reply["ranks"]["0"]["state"] in ("S", "R")


def test_a_schedulers_signal_that_has_ended_the_ranks_already_does_not_end_the_agent_too(silent_rank: Rank):
    local_ranks = crew_of(silent_rank, [])
    silent_rank.exited = True
    assert local_ranks.pass_on(signal.SIGTERM), "the controller hears of their end first"
    assert not local_ranks.is_busy, "nobody is left to pass it on to"
    local_ranks.ranks = {}
    assert not local_ranks.pass_on(signal.SIGTERM)


def test_a_rank_that_cannot_be_asked_is_not_said_to_be_silent(silent_rank: Rank):
    silent_rank.thread = silent_rank.pid
    silent_rank.streams[2].close_write()  # its only end: the script has closed it
    look = stack_capture.Look(5, [silent_rank], False)
    assert look.step()
    assert look.reply()["ranks"]["0"]["answered"] is None


def test_a_rank_is_silent_only_when_its_time_is_over(silent_rank: Rank):
    silent_rank.thread = silent_rank.pid
    hasty = stack_capture.Look(5, [silent_rank], False)
    assert hasty.reply()["ranks"]["0"]["answered"] is None
    patient = stack_capture.Look(6, [silent_rank], False)
    wait_until("the end of the look", patient.step)
    assert patient.reply()["ranks"]["0"]["answered"] is False


def test_a_zygote_that_is_killed_while_it_imports_is_reported_with_the_state_of_the_host(
    silent_rank: Rank, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bootstrap, "own_package", lambda: b"")
    sent: list[dict[str, Any]] = []
    local_ranks = crew_of(silent_rank, sent)
    target: Any = {"kind": "script", "target": "x.py", "args": [], "path": []}
    local_ranks.prepare({"cwd": "/", "env": {}, "preload": ["torch"], "grace": 0.0, "keep": False, **target}, 4)
    spawner = local_ranks.spawner
    assert spawner is not None
    os.kill(spawner.pid, signal.SIGKILL)
    os.waitpid(spawner.pid, 0)
    local_ranks.ranks = {}
    for key in list(local_ranks.selector.get_map().values()):
        key.data()
    reply, broken = sent
    assert reply["re"] == 4
    assert reply["error"] == "the process that imports torch died"
    assert set(reply["facts"]["memory"]) == {"group_kills", "host_kills", "limit", "peak", "total"}
    assert broken == {"t": "broken"}


def test_a_rank_whose_spawner_is_stopped_is_reported_when_it_has_been_killed(silent_rank: Rank):
    """Otherwise the controller would not learn of any failure and would report success."""
    sent: list[dict[str, Any]] = []
    local_ranks = crew_of(silent_rank, sent)
    local_ranks.stop(6, 0.0)
    wait_until("the reply", lambda: local_ranks.step() or any("re" in message for message in sent), 60)
    exits = [message for message in sent if message.get("t") == "exit"]
    assert [(message["rank"], message["status"]) for message in exits] == [(0, -signal.SIGKILL)]
    assert exits[0]["stopped_at"] is not None
    local_ranks._on_ended({"t": "ended", "rank": 0, "status": 1, "time": 1.0, "rss": 0})  # pyright: ignore[reportPrivateUsage]
    assert len([message for message in sent if message.get("t") == "exit"]) == 1, "what the spawner reports late is old"


@pytest.mark.parametrize(
    "junk",
    [
        b"[" * 100_000,
        b'{"t":"sampling","thread":"x","time":1.0}',
        b"\xff",
        b'{"t":"exception"}',
        b"[]",
        b'{"t":"\\ud800"}',
    ],
)
def test_what_a_script_writes_to_the_descriptor_of_reports_does_not_end_its_agent(junk: bytes):
    sent: list[dict[str, Any]] = []
    rank = Rank(0, {})
    local_ranks = crew_of(rank, sent)
    try:
        local_ranks._reports.read(rank.streams[2], junk + b'\n{"t":"late","names":["A"],"time":1.0}\n')
        local_ranks._reports.read(rank.streams[2], b"x" * (17 << 20))
        local_ranks._reports.read(rank.streams[2], b'\n{"t":"late","names":["B"],"time":1.0}\n')
    finally:
        rank.close()
    assert [message["names"] for message in sent if message["t"] == "late"] == [["A"], ["B"]]


def test_a_spawner_that_could_not_be_started_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    rank = Rank(0, {})
    local_ranks = crew_of(rank, [])

    def fail(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Spawner, "start_plain", fail)
    target: Any = {"env": {}, "cwd": "/", "preload": [], "kind": "script", "target": "x.py", "args": [], "path": []}
    target["keep"] = False
    try:
        with pytest.raises(OSError, match="no more processes"):
            local_ranks.prepare(target, 1)
    finally:
        rank.close()
    assert local_ranks.spawner is None, "process 0 would stand for the agent's own group"


def test_a_store_that_starts_after_its_attempt_is_killed_and_the_next_one_is_kept():
    spawner = Spawner()
    with (
        ending(subprocess.Popen(["sleep", "100"])) as old,
        ending(subprocess.Popen(["sleep", "100"])) as new,
        socket.socket() as listener,
    ):
        spawner.start_store(listener)
        spawner.end_store()
        spawner.start_store(listener)
        spawner.on_store_started(old.pid)
        assert old.wait(30) == -signal.SIGKILL
        spawner.on_store_started(new.pid)
        assert new.poll() is None
        assert spawner.pids == {new.pid}


def test_a_store_is_requested_in_vain_of_a_spawner_that_is_gone():
    spawner = Spawner()
    spawner._theirs.close()
    with socket.socket() as listener:
        spawner.start_store(listener)
    assert spawner.receive([], Guard(lambda message: None)) is None


def test_a_store_that_starts_while_the_ranks_are_stopped_is_spared_and_is_no_loss(silent_rank: Rank):
    sent: list[dict[str, Any]] = []
    local_ranks = crew_of(silent_rank, sent)
    local_ranks.starter.spawner = Spawner()
    local_ranks.stop(3, 100.0)
    local_ranks._on_store_started({"t": "store_started", "pid": silent_rank.pid})
    assert local_ranks.stopping is not None
    assert silent_rank.pid in local_ranks.stopping.spared
    local_ranks._on_storeless({"t": "storeless", "pid": silent_rank.pid, "status": -9})
    assert sent == []
