"""Random requests and answers at the job socket, lab.sock and the dashboard: one sentence each, and nothing breaks."""

from __future__ import annotations

import json
import os
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzz.mutations import JUNK, damaged, mutated
from spoiled_files import dumped
from test_dashboard_server import ended, job, served, write_folder
from test_job_server import PATIENT, OpenDoor
from waiting import wait_until

from muster.errors import LabError, MusterError
from muster.jobs import job_client
from muster.jobs.location import address
from muster.jobs.state import from_data
from muster.lab import lab_client, lab_server

pytestmark = pytest.mark.timeout(100)

ROUNDS = 150


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # pytest's own are too long for a socket
        path = Path(short) / "20261115-101500-train-3f9a"
        path.mkdir(mode=0o700)
        yield path


def said_by(path: Path | str, request: bytes) -> bytes:
    """The first line of the answer to some bytes."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENT)
        peer.connect(str(path))
        with suppress(BrokenPipeError, ConnectionResetError):  # it need not read all of them
            peer.sendall(request)
            peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            return peer.makefile("rb").readline()
    return b""


# --- the socket of a job ------------------------------------------------------------------------------------

REQUESTS: list[dict[str, Any]] = [
    {"do": "state", "since": 1.0, "stacks": True, "protocol": 1, "muster": "1"},
    {"do": "stop", "grace": 3.0, "stacks": False, "protocol": 1},
    {"do": "drain", "host": "b", "left": 30.0},
    {"do": "stacks"},
    {"do": "follow", "last": 3},
]


@pytest.mark.parametrize(
    ("request_line", "why"),
    [
        (b"[]", "it must be a JSON object with the field `do`"),
        (b'{"do": []}', "it must be a JSON object with the field `do`"),
        (b"nonsense", "it is not JSON"),
        (b"[" * 50_000, "it is not JSON"),
        (b"x" * 200_000, "it is too long"),
        (b'{"do": "stop", "grace": "x"}', "the field `grace` must be float | None, not 'x'"),
        (b'{"do": "stop", "grace": NaN}', "`grace` must be between 0 and 31622400 s"),
        (b'{"do": "stop", "grace": 1' + b"0" * 400 + b"}", "`grace` must be between 0 and 31622400 s"),
        (b'{"do": "dance\\u001b[2J"}', "this job does not know the request `dance [2J`"),
    ],
)
def test_an_invalid_request_is_answered_with_one_sentence(folder: Path, request_line: bytes, why: str) -> None:
    door = OpenDoor(folder)
    said = json.loads(said_by(folder / "socket", request_line + b"\n"))["error"]
    door.close()
    assert why in said
    assert said.isprintable()
    assert "Error" not in said
    assert door.asked_to_stop == []
    assert door.problems == []


def test_no_request_harms_a_job(folder: Path) -> None:
    rng = random.Random(1)
    door = OpenDoor(folder)
    for _ in range(ROUNDS):
        request = dumped(mutated(rng.choice(REQUESTS), rng))
        line = damaged(request, rng) if rng.random() < 0.3 else request
        answer = said_by(folder / "socket", line + b"\n")
        found = json.loads(answer) if answer else {}
        assert "the request failed" not in str(found.get("error", "")), (line, found)
    assert door.ask()["phase"] == "running"
    assert all(grace is None or 0 <= grace < 1e8 for grace in door.asked_to_stop)
    door.close()
    assert door.problems == []


@pytest.fixture
def liar(folder: Path) -> Iterator[Callable[[bytes], None]]:
    """A job socket that answers each request with the bytes that were last set."""
    answer = b""

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.recv(1 << 16)
                peer.sendall(answer)

    def set_answer(data: bytes) -> None:
        nonlocal answer
        answer = data

    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    server.listen()
    threading.Thread(target=serve, daemon=True).start()
    yield set_answer
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_no_answer_of_a_job_breaks_a_command(folder: Path, liar: Callable[[bytes], None]) -> None:
    rng = random.Random(2)
    report = {"kind": "stacks", "time": 1.0, "sentence": "x", "ranks": [0], "stacks": {"0": "a.py:1"}}
    answers = [{"ok": True, "said": "x"}, {"said": "x"}, {"report": report}, {"error": "x", "hint": "y"}]
    lines = [{"stream": 1, "text": "a", "end": "\n"}, {"end": 3}]
    asks: list[Callable[[], object]] = [
        lambda: from_data(job_client.state(folder)),
        lambda: job_client.stop(folder, grace=1.0),
        lambda: job_client.drain(folder, "b", 3.0),
        lambda: job_client.take_stacks(folder),
        lambda: [*job_client.follow(folder, last=3)],
    ]
    for _ in range(ROUNDS):
        data = mutated(rng.choice([*answers, *lines]), rng)
        liar(damaged(dumped(data), rng) if rng.random() < 0.3 else dumped(data) + b"\n")
        for ask in asks:
            with suppress(MusterError, *([ValueError] if ask is asks[0] else [])):
                ask()


def test_a_line_for_followers_that_does_not_end_is_given_up(
    folder: Path, liar: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_client, "_LARGEST_LINE", 1 << 20)
    liar(b"x" * (3 << 20))
    with pytest.raises(MusterError, match="a line that does not end"):
        list(job_client.follow(folder))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to listen as another user")
def test_a_socket_that_another_user_holds_is_not_asked(folder: Path) -> None:
    folder.parent.chmod(0o777)
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as server:
        os.seteuid(65534)
        try:
            server.bind(str(folder / "socket"))
            server.listen()
        finally:
            os.seteuid(0)
        assert address(folder) is not None
        with pytest.raises(job_client.NoAnswer):
            job_client.stop(folder)
        peer, _ = server.accept()
        with peer:
            assert peer.recv(100) == b""


# --- the socket of the lab ----------------------------------------------------------------------------------


class FakeLab:
    """A lab of which only its requests matter."""

    kind, limits = "fake", ()

    def __init__(self) -> None:
        self.stopped = False

    def ssh_argv(self) -> list[str]:
        return ["ssh"]

    def status(self) -> list[object]:
        return []

    def stop(self) -> None:
        self.stopped = True

    def enter_argv(self, host: str, *, cwd: str) -> list[str]:
        return [host, cwd]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Path]:
    monkeypatch.setattr(
        lab_server, "FAULTS", {"cut": lambda lab, host: None, "slow": lambda lab, host, *, cpu: 1 / cpu}
    )
    monkeypatch.setattr(lab_server.traceback, "print_exc", lambda: None)
    fake: Any = FakeLab()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "lab.sock"))
        server.listen()
        thread = threading.Thread(target=lab_server.serve, args=(fake, server), daemon=True)
        thread.start()
        yield folder / "lab.sock"
        assert json.loads(said_by(folder / "lab.sock", b'{"verb": "down"}\n')) == {}
        wait_until("the end of the lab", lambda: not thread.is_alive(), PATIENT)
        assert fake.stopped


def test_no_request_ends_the_lab(lab: Path) -> None:
    rng = random.Random(3)
    requests = [{"verb": "status"}, {"verb": "cut", "host": "h1"}, {"verb": "slow", "host": "h1", "cpu": 0.5}]
    requests.append({"verb": "enter", "host": "h1", "cwd": "/"})
    lines = [b"[]\n", b"{}\n", b'{"verb": []}\n', b"\n", b"", b"x" * 300_000, b"[" * 60_000 + b"\n", b'"status"\n']
    lines += [dumped(junk) + b"\n" for junk in JUNK]
    for _ in range(ROUNDS):
        line = dumped(mutated(rng.choice(requests), rng)) + b"\n"
        lines.append(damaged(line, rng) if rng.random() < 0.3 else line)
    for line in lines:
        if b'"down"' not in line:
            answer = said_by(lab, line)
            assert not answer or type(json.loads(answer)) is dict, line
    assert json.loads(said_by(lab, b"[]\n"))["error"] == (
        "invalid request: it must be a JSON object with the field `verb`"
    )
    assert json.loads(said_by(lab, b'{"verb": "status"}\n'))["kind"] == "fake"


def test_a_client_that_sends_its_request_slowly_does_not_block_the_lab(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_server, "REQUEST_LIMIT", 0.3)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(lab))
        over = threading.Event()

        def send() -> None:
            with suppress(OSError):
                while not over.wait(0.05):
                    slow.sendall(b" ")

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        assert json.loads(said_by(lab, b'{"verb": "status"}\n'))["kind"] == "fake"
        over.set()
        sender.join()


@pytest.mark.parametrize(
    "answer", ["[]\n", "nonsense\n", "3\n", "[" * 50_000 + "\n", '{"error": []}\n', '{"error": "x"}\n']
)
def test_an_invalid_answer_of_the_lab_is_one_sentence(answer: str) -> None:
    with pytest.raises(LabError):
        lab_client._checked(answer)


# --- the dashboard ------------------------------------------------------------------------------------------


def test_no_request_breaks_the_dashboard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent))
    paths = ["", "view.json?since=1", "log.json?rank=0&before=9", "log.json?find=a", "log.txt?rank=0&attempt=0"]
    paths += [
        "stacks.json?report=0",
        "state.json",
        "metrics",
        "jobs.json",
        "jobs/",
        f"jobs/{folder.name}/view.json",
        "docs/hangs.md",
    ]
    bits = ["%00", "%2e%2e/", "../", "?", "&", "=", "#", "rank=-1", "rank=1e999", "since=nan", "before=", "\x80", "//"]
    bits += ["find=%ff", "attempt=99999999999999999999", "x" * 300, "rank=٣", ";", "*", "%", "\x1b[2J"]
    with served(write_folder(folder, ended(job()))) as page:
        for _ in range(ROUNDS):
            path = rng.choice(paths)
            for _ in range(rng.randint(0, 3)):
                at = rng.randrange(len(path) + 1)
                path = path[:at] + rng.choice(bits) + path[at:]
            head = f"GET /{page.token}/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            head = damaged(head, rng) if rng.random() < 0.2 else head
            with socket.create_connection(("127.0.0.1", page.port), timeout=PATIENT) as peer, suppress(ConnectionError):
                peer.sendall(head)
                with suppress(OSError):  # it has answered and closed
                    peer.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: peer.recv(1 << 16), b""))
                assert b"internal error" not in answer, (head, answer[:2000])
                assert b"HTTP/1.1 500" not in answer, (head, answer[:2000])
        assert page.get("").status == 200
