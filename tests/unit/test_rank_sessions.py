"""Ranks under PBS: their sessions are attached to the job, and signals of PBS reach them once."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import ending, patience, wait_until

from muster.agent.rank_process import Rank
from muster.agent.rank_sessions import RankSessions
from muster.agent.signal_relay import SignalRelay
from muster.agent.stopping import Stopping
from muster.shared import processes

COUNTER = """
import signal, sys, time
def count(number, frame): print(signal.Signals(number).name, flush=True)
for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, count)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def counter() -> Iterator[tuple[Rank, subprocess.Popen[str]]]:
    """A rank that prints the signals that it gets."""
    process = subprocess.Popen([sys.executable, "-c", COUNTER], stdout=subprocess.PIPE, text=True)
    with ending(process):
        assert process.stdout is not None
        process.stdout.readline()
        rank = Rank(0, {})
        rank.pid = process.pid
        yield rank, process
        rank.close()


def heard(process: subprocess.Popen[str]) -> list[str]:
    """All signals that it got, of which there is at least one: a second would come soon after the first."""
    assert select.select([process.stdout], [], [], patience(10))[0]
    time.sleep(0.1)
    process.kill()
    return process.communicate(timeout=10)[0].split()


def reap(sessions: RankSessions) -> None:
    """Report the children that have ended, among which may be some of earlier tests."""
    for pid, status, _ in processes.reap():
        sessions.on_exit(pid, status)


def noted(sessions: RankSessions, notes: list[str]) -> bool:
    reap(sessions)
    return bool(notes)


def test_a_session_is_attached_once_it_exists(tmp_path: Path) -> None:
    notes: list[str] = []
    sessions = RankSessions(["/bin/sh", "-c", f'echo "$1" >> {tmp_path}/attached', "sh", "-p"][:-1], notes.append)
    go, ready = os.pipe(), os.pipe()
    rank = os.fork()
    if not rank:
        os.read(go[0], 1)
        os.setsid()
        os.write(ready[1], b"x")
        time.sleep(60)
        os._exit(0)
    try:
        sessions.add(rank)
        sessions.step()
        assert sessions.is_busy, "its session is still that of the process that forked it"
        assert not (tmp_path / "attached").exists()
        os.write(go[1], b"x")
        os.read(ready[0], 1)
        sessions.step()
        assert not sessions.is_busy
        attached = tmp_path / "attached"
        wait_until("the command", lambda: attached.exists() and attached.read_text() == f"{rank}\n", 10)
        reap(sessions)
        assert notes == []
    finally:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)


def test_a_command_that_fails_is_noted_and_a_rank_that_has_ended_is_not() -> None:
    notes: list[str] = []
    sessions = RankSessions(["/bin/false"], notes.append)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with ending(process):
        sessions.add(process.pid)
        wait_until("the end of the command", lambda: noted(sessions, notes), 10)
        assert notes == [f"could not attach the session of process {process.pid}: /bin/false ended with code 1"]
    sessions.add(process.pid)
    assert not sessions.is_busy
    sessions.add(0)  # a rank that could not be forked
    assert not sessions.is_busy


def test_a_signal_that_pbs_sends_to_controller_agent_and_ranks_reaches_each_rank_once(counter: Any) -> None:
    rank, process = counter
    sent: list[dict[str, Any]] = []
    relay = SignalRelay(lambda message: sent.append(dict(message)), lambda: [rank])
    relay.is_direct = True
    relay.signal(signal.SIGUSR1)  # the controller got it first, and forwards it
    assert relay.is_busy
    os.kill(rank.pid, signal.SIGUSR1)
    relay.pass_on(signal.SIGUSR1)
    wait_until("the relay", lambda: relay.step() or not relay.is_busy, 5)
    assert heard(process) == ["SIGUSR1"]
    assert sent == [], "the controller knows already"


def test_a_signal_that_only_the_controller_got_reaches_each_rank_once(counter: Any) -> None:
    rank, process = counter
    relay = SignalRelay(lambda message: None, lambda: [rank])
    relay.is_direct = True
    relay.signal(signal.SIGUSR1)
    wait_until("the relay", lambda: relay.step() or not relay.is_busy, 5)
    assert heard(process) == ["SIGUSR1"]


def test_a_rank_that_pbs_has_warned_gets_no_second_sigterm(counter: Any) -> None:
    rank, process = counter
    relay = SignalRelay(lambda message: None, lambda: [rank])
    relay.is_direct = True
    stopping = Stopping([rank], set(), 1.0, patience=0.2)  # the controller got it first, and stops the job
    os.kill(rank.pid, signal.SIGTERM)
    relay.pass_on(signal.SIGTERM)
    begin = time.monotonic()
    while time.monotonic() < begin + 0.6:
        relay.step()
        stopping.step()
        time.sleep(0.01)
    assert heard(process) == ["SIGTERM"]


def test_a_rank_that_pbs_does_not_warn_gets_sigterm_in_time(counter: Any) -> None:
    rank, process = counter
    stopping = Stopping([rank], set(), 1.0, patience=0.2)
    begin = time.monotonic()
    while time.monotonic() < begin + 0.6:
        stopping.step()
        time.sleep(0.01)
    assert heard(process) == ["SIGTERM"]
