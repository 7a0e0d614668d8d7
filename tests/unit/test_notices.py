"""How an agent learns that its host is about to go away, and how its ranks learn of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import ending, patience, wait_until

from muster.agent import notices
from muster.agent.deadline import Deadline
from muster.agent.notices import Notices, PollError, run_command
from muster.rank.world.time_left import VARIABLE, read_deadline
from muster.shared.light_selectors import Selector

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux"),
    pytest.mark.timeout(100),
]


class Host:
    """The part of an agent that watches for notices, with its loop."""

    def __init__(self, command: str, *, sigterm: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.selector = Selector()
        ranks: Any = SimpleNamespace(spawner=1, folders=["/"])
        send: Any = self.sent.append
        self.notices = Notices(self.selector, send, ranks, {"command": command, "sigterm": sigterm})

    def turn_until(self, done: Callable[[], bool], limit: float = 30.0) -> None:
        deadline = time.monotonic() + patience(limit)
        while not done() and time.monotonic() < deadline:
            self.notices.step()
            for key, _ in self.selector.select(0.02) if self.selector.get_map() else ():
                key.data()
        assert done(), self.sent


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Host]]:
    monkeypatch.setattr(notices, "EVERY", 0.05)
    monkeypatch.setattr(notices, "_IDLE", 0)
    made: list[Host] = []

    def make(command: str, **settings: Any) -> Host:
        made.append(Host(command, **settings))
        return made[-1]

    yield make
    for each in made:
        each.notices.end()
        each.selector.close()


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("true", 30.0),
        ("echo 90", 90.0),
        ("echo going in 12.5 seconds, not 99", 12.5),
        ("echo 45; yes | head -c 300000", 45.0),
        ("echo 60 >&2", 30.0),
    ],
)
def test_a_command_that_succeeds_is_a_notice_with_the_first_number_it_prints(command: str, left: float):
    assert run_command(command) == (left, f"according to --notice {command}")


@pytest.mark.parametrize("command", ["false", "echo 30; exit 3", "kill -9 $$"])
def test_a_command_that_fails_is_no_notice(command: str):
    assert run_command(command) is None


@pytest.mark.parametrize("command", ["no-such-program --json", "/etc/passwd"])
def test_a_command_that_cannot_start_is_an_error(command: str):
    with pytest.raises(PollError, match=r"ended with exit code 12[67]: .*(not found|denied)"):
        run_command(command)


def test_a_notice_is_sent_once_and_again_only_if_the_deadline_is_earlier(host: Callable[..., Host], tmp_path: Path):
    def say(text: str) -> None:
        (tmp_path / "draft").write_text(text)
        (tmp_path / "draft").replace(tmp_path / "left")

    def polls() -> int:
        return len((tmp_path / "polls").read_text().split())

    watching = host(f"echo . >> {tmp_path}/polls; cat {tmp_path}/left")
    say("100")
    watching.turn_until(lambda: len(watching.sent) == 1)
    assert (watching.sent[0]["t"], watching.sent[0]["left"]) == ("notice", 100)
    say("101")
    seen = polls()
    watching.turn_until(lambda: polls() > seen + 2)
    assert len(watching.sent) == 1
    say("20")
    watching.turn_until(lambda: len(watching.sent) == 2)
    assert watching.sent[1]["left"] == 20


def test_a_missing_command_is_reported_once(host: Callable[..., Host]):
    watching = host("no-such-program")
    watching.turn_until(lambda: len(watching.sent) == 1)
    assert watching.sent[0]["what"] == "whether the host is about to go away"
    assert "not found" in watching.sent[0]["why"]
    end = time.monotonic() + 0.5
    watching.turn_until(lambda: time.monotonic() > end)
    assert len(watching.sent) == 1


def test_a_command_that_hangs_is_killed_reported_and_started_again(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(notices, "_POLL_LIMIT", 0.5)
    file = tmp_path / "pids"
    watching = host(f"echo $$ >> {file}; exec sleep 100")
    watching.turn_until(lambda: len(watching.sent) == 1)
    assert "did not end within 0.5 s" in watching.sent[0]["why"]
    watching.turn_until(lambda: len(file.read_text().split()) == 2)
    first = int(file.read_text().split()[0])
    watching.turn_until(lambda: not os.path.exists(f"/proc/{first}"))


def test_a_poll_that_was_killed_is_started_again(host: Callable[..., Host], tmp_path: Path):
    watching = host(f"test -e {tmp_path}/now")
    watching.turn_until(lambda: watching.notices._pid != 0)
    poll = watching.notices._pid
    wait_until("the session of the poll", lambda: os.getsid(poll) == poll)
    os.killpg(poll, signal.SIGKILL)
    (tmp_path / "now").touch()
    watching.turn_until(lambda: len(watching.sent) == 1)
    assert watching.sent[0]["left"] == 30


def test_the_first_sigterm_is_a_notice_and_the_second_ends_the_agent(host: Callable[..., Host]):
    watching = host("", sigterm=True)
    assert watching.notices.on_sigterm()
    watching.notices.step()
    watching.notices.step()
    assert watching.sent == [{"t": "notice", "left": 30.0, "why": "its agent received SIGTERM"}]
    assert not watching.notices.on_sigterm()


def test_in_a_job_that_needs_its_host_sigterm_ends_the_agent(host: Callable[..., Host]):
    assert not host("true").notices.on_sigterm()


# --- the ranks ----------------------------------------------------------------------------------------------

RANK = """
import signal, sys, time
print(1, flush=True)
sys.stdin.readline()
signal.signal(signal.SIGUSR1, lambda *_: print("signaled", flush=True))
while True:
    time.sleep(0.05)
"""


def test_ranks_read_the_deadline_until_the_next_ranks_start(monkeypatch: pytest.MonkeyPatch):
    deadline = Deadline(list)
    monkeypatch.setenv(VARIABLE, deadline.path)
    assert read_deadline() is None
    deadline.announce({"time": 1794836642.5, "signal": 0}, 1)
    assert read_deadline() == 1794836642.5
    deadline.announce({"time": 9.0, "signal": 0}, 2)
    assert read_deadline() == 9.0
    deadline.clear()
    assert read_deadline() is None


@pytest.mark.parametrize("path", ["", "/no/such/file", "/dev/null", "/etc/passwd"])
def test_without_a_deadline_file_there_is_no_deadline(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, path)
    assert read_deadline() is None


def test_a_rank_without_a_handler_is_signaled_once_when_it_has_one():
    process = subprocess.Popen(
        [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    with ending(process):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        rank: Any = SimpleNamespace(number=3, pid=process.pid, exited=False)
        starting: Any = SimpleNamespace(number=4, pid=0, exited=False)
        deadline = Deadline(lambda: [rank, starting])
        answer = deadline.announce({"time": 9.0, "signal": int(signal.SIGUSR1)}, 1)
        assert answer == {"ranks": [3, 4], "unheard": [3, 4]}
        process.stdin.write("\n")
        while deadline._waiting == {3, 4}:
            deadline.step()
        assert deadline._waiting == {4}
        assert process.stdout.readline() == "signaled\n"
        assert process.poll() is None
