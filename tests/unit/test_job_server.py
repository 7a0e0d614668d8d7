"""The socket of a job: who may ask, what is answered, and that no client can harm the job."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sample_status import make_status
from waiting import wait_until

from muster.controller.monitor.job_server import MOST_CLIENTS, JobServer
from muster.errors import HostError, MusterError, UsageError
from muster.jobs import job_client
from muster.jobs.location import address
from muster.jobs.state import Report
from muster.output.lines import Line
from muster.output.screen import Screen

pytestmark = pytest.mark.timeout(100)

PATIENT = 20.0
"""Seconds for what happens at once where the machine has time for it."""


class OpenDoor:
    """A door in an event loop of its own, as in a controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.screen = Screen(streams={1: None, 2: None})
        self.status, _ = make_status()
        self.asked_to_stop: list[float | None] = []
        self.problems: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self._open = threading.Event()
        self._released = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._open.wait(PATIENT)

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda loop, context: self.problems.append(context))
        self._over = asyncio.Event()
        try:
            async with JobServer(
                self.folder,
                self.status,
                self.screen,
                stop=self.asked_to_stop.append,
                drain=self._drain,
                take_stacks=self._take_stacks,
            ):
                self._open.set()
                await self._over.wait()
                if self.failure is not None:
                    raise self.failure
                self.status.ended(7, "")
        except MusterError:
            pass

    def _drain(self, host: str, left: float | None) -> str:
        if host != "b":
            raise UsageError(f"host {host} is not in job j", hint="its hosts are a, b")
        return f"{host} has {left} s left"

    async def _take_stacks(self) -> Report:
        report = Report(kind="stacks", time=1.0, sentence="stack traces of 2 ranks: stacks-1.txt", stacks={0: "x"})
        self.status.reports.append(report)
        return report

    def close(self, failure: BaseException | None = None) -> None:
        """End the job, and wait for that."""
        self.failure = failure
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENT)
        self.screen.close()
        assert not self._thread.is_alive()

    def hold(self) -> None:
        """Let the loop do nothing until it is released."""
        self.loop.call_soon_threadsafe(self._released.wait, PATIENT)

    def release(self) -> None:
        self._released.set()

    def ask(self, **fields: Any) -> dict[str, Any]:
        """The job's state."""
        return job_client.state(self.folder, limit=PATIENT, **fields)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # pytest's own are too long for a socket
        path = Path(short) / "20261115-101500-train-3f9a"
        path.mkdir(mode=0o700)
        yield path


@pytest.fixture
def door(folder: Path) -> Iterator[OpenDoor]:
    door = OpenDoor(folder)
    yield door
    if door._thread.is_alive():
        door.close()
    assert door.problems == []


def test_only_its_user_can_reach_the_socket_and_it_goes_with_the_job(door: OpenDoor):
    path = address(door.folder)
    assert path is not None
    assert path.parent == door.folder
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert path.stat().st_mode & 0o777 == 0o600
    door.close()
    assert list(door.folder.iterdir()) == []
    with pytest.raises(job_client.NoAnswer):
        job_client.state(door.folder)


def test_a_folder_with_a_long_path_has_its_socket_elsewhere(folder: Path):
    long = folder / ("x" * 100) / folder.name
    long.mkdir(parents=True)
    door = OpenDoor(long)
    path = address(long)
    assert path is not None
    assert path.parent == Path(f"/tmp/muster-{os.getuid()}")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert door.ask()["id"] == folder.name
    door.close()
    assert not path.exists()
    assert address(long) is None


def test_a_job_without_a_socket_reports_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    base = folder / "muster-0"
    base.mkdir(mode=0o777)
    base.chmod(0o777)  # as somebody else would have made it in /tmp
    monkeypatch.setattr("muster.home.short_folder", lambda: base)
    long = folder / ("x" * 100) / folder.name
    long.mkdir(parents=True)
    said: list[str] = []
    monkeypatch.setattr(Screen, "warning", lambda screen, text: said.append(text))
    OpenDoor(long).close()
    assert said == [
        f"other commands cannot connect to this job ({base} is not a directory of this user alone): `muster attach`, "
        "`drain` and `show --stacks` do not work; `ps`, `logs`, `show` and `stop` do"
    ]


def test_a_socket_that_was_left_behind_is_replaced(folder: Path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "socket"))
    with pytest.raises(job_client.NoAnswer):
        job_client.state(folder)
    door = OpenDoor(folder)
    assert door.ask()["phase"] == "running"
    door.close()


def test_the_state_is_answered_whole_or_in_part(door: OpenDoor):
    door.status.tick()
    job_client.take_stacks(door.folder)
    whole = door.ask()
    assert (len(whole["ranks"]), len(whole["history"]), whole["reports"][0]["stacks"]) == (2, 1, {"0": "x"})
    part = door.ask(since=time.time() + 3600, stacks=False)
    assert (part["history"], part["reports"][0]["stacks"]) == ([], {})


def test_a_stop_is_passed_on_with_its_grace_and_stacks_are_taken_before(door: OpenDoor):
    assert job_client.stop(door.folder) == ""
    assert job_client.stop(door.folder, grace=0.5, stacks=True) == "stack traces of 2 ranks: stacks-1.txt"
    assert door.asked_to_stop == [None, 0.5]


def test_a_follower_gets_the_last_lines_all_that_follow_and_the_exit_code(door: OpenDoor):
    for number in range(200):
        door.screen.warning(f"before {number}")
    follower = job_client.follow(door.folder, last=2)
    assert [next(follower) for _ in range(2)] == [
        {"stream": 2, "text": f"muster: before {number}", "end": "\n"} for number in (198, 199)
    ]
    threading.Thread(target=door.screen.warning, args=("from another thread",)).start()
    assert next(follower) == {"stream": 2, "text": "muster: from another thread", "end": "\n"}
    door.close()
    assert list(follower) == [{"end": 7}]


def test_a_line_that_renews_itself_is_kept_once(door: OpenDoor):
    for number in range(50):
        door.screen.rank_line("h1", 0, 1, 2, Line(f"{number} %", "\r"))
    door.screen.warning("last")
    follower = job_client.follow(door.folder, last=2)
    assert next(follower) == {"stream": 2, "text": "muster: last", "end": "\n"}


def test_a_follower_gets_an_error_that_ends_the_job(door: OpenDoor):
    door.screen.warning("first")
    follower = job_client.follow(door.folder, last=1, every=0.2)
    wait_until("the first line", lambda: next(follower), PATIENT)  # from here on it is known to the door
    assert next(follower) is None
    door.close(HostError("h2", "no route to this host"))
    assert list(follower) == [{"stream": 2, "text": "error: h2: no route to this host", "end": "\n"}, {"end": 125}]
    assert (door.status.exit_code, door.status.sentence) == (125, "h2: no route to this host")


def test_a_slow_follower_loses_lines_with_a_message_and_delays_no_one(door: OpenDoor):
    slow = job_client.follow(door.folder, last=1)
    door.screen.warning("first")
    assert next(slow) is not None
    for turn in range(60):  # 60 MB, which nobody reads
        for number in range(250):
            door.screen.rank_line("h1", 0, 1, 1, Line(f"{turn} {number} {'x' * 4000}", "\n"))
        door.ask()
    got = 0
    for line in slow:
        assert line is not None
        got += 1
        if "not shown" in line["text"]:
            break
        if got % 125 == 0:
            door.screen.warning("still there")  # the word comes with the next line after it has caught up
    assert got < 10_000


def test_a_job_ends_at_once_although_a_follower_reads_nothing(door: OpenDoor):
    slow = job_client.follow(door.folder, last=1)
    door.screen.warning("first")
    next(slow)
    for number in range(5000):
        door.screen.rank_line("h1", 0, 1, 1, Line(f"{number} {'x' * 1000}", "\n"))
    door.close()


def test_one_client_too_many_is_sent_away_and_room_is_made_again(door: OpenDoor):
    path = address(door.folder)
    peers = [socket.socket(socket.AF_UNIX) for _ in range(MOST_CLIENTS)]
    for peer in peers:
        peer.connect(str(path))
    for _ in range(5):
        with pytest.raises(MusterError, match=f"{MOST_CLIENTS} clients are connected"):
            door.ask()
    for peer in peers:
        peer.close()

    def answered() -> bool:
        try:
            return bool(door.ask())
        except MusterError:
            return False

    wait_until("room for another client", answered, PATIENT)


@pytest.mark.parametrize(
    "words",
    [b"\n", b"hello\n", b"[]\n", b"{}\n", b'{"do": 3}\n', b'{"do":"state","since":"x"}\n', b"x" * 200_000 + b"\n"],
)
def test_nonsense_harms_nobody(door: OpenDoor, words: bytes):
    door.status.tick()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENT)
        peer.connect(str(address(door.folder)))
        with suppress(BrokenPipeError):  # it need not hear all of them
            peer.sendall(words)
        answer = peer.makefile("rb").readline()
    assert "error" in json.loads(answer)
    assert door.ask()["phase"] == "running"


def test_a_client_that_goes_in_the_middle_of_an_answer_harms_nobody(door: OpenDoor):
    for _ in range(20):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(address(door.folder)))
        peer.sendall(b'{"do": "state"}\n{"do": "follow", "last": 5}\n')
        peer.close()
        door.screen.warning("a line")
    assert door.ask()["phase"] == "running"


def test_a_controller_that_is_busy_is_not_waited_for_longer_than_allowed(door: OpenDoor):
    door.ask()
    door.hold()
    with pytest.raises(job_client.NoAnswer):  # well before it is released, and then would answer
        job_client.state(door.folder, limit=0.3)
    door.release()


def test_a_request_to_drain_is_answered_with_what_happens(door: OpenDoor):
    assert job_client.drain(door.folder, "b", 30.0) == "b has 30.0 s left"


def test_a_request_to_drain_a_strange_host_gets_its_error_and_hint(door: OpenDoor):
    with pytest.raises(UsageError, match="host x is not in job j") as caught:
        job_client.drain(door.folder, "x", None)
    assert caught.value.hint == "its hosts are a, b"


@pytest.mark.parametrize("left", [-1.0, float("nan"), float("inf")])
def test_a_request_to_drain_in_an_impossible_time_is_refused(door: OpenDoor, left: float):
    with pytest.raises(UsageError, match="must be between 0"):
        job_client.drain(door.folder, "b", left)
