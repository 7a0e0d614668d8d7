"""The dashboard's server: who gets an answer, and what is in it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tomllib
from sample_job import HOSTILE, STACKS, ended, job, write_folder
from waiting import wait_until

from muster.dashboard import docs_pages
from muster.dashboard import server as server_module
from muster.dashboard.address import address, listen, new_token
from muster.dashboard.job_list import JobList
from muster.dashboard.server import DashboardServer
from muster.errors import MusterError

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src/muster/dashboard/static"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Page:
    """A server with something to ask it."""

    def __init__(self, folder: Path) -> None:
        self.token = new_token()
        self.listener = listen()
        self.port: int = self.listener.getsockname()[1]
        self.address = address(self.listener, self.token)
        self.server = DashboardServer(self.listener, self.token, JobList(folder))
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def get(self, path: str, *, token: str | None = None, host: str | None = None, method: str = "GET") -> Reply:
        """A path below the token; `host` is the header of that name."""
        return self.raw(f"/{self.token if token is None else token}/{path}", host=host, method=method)

    def raw(self, path: str, *, host: str | None = None, method: str = "GET") -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host or f"127.0.0.1:{self.port}")
            connection.endheaders()
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()


@contextmanager
def served(folder: Path) -> Iterator[Page]:
    made = Page(folder)
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("jobs") / "20261115-101500-train-3f9a"
    with served(write_folder(folder, ended(job()))) as made:
        yield made


# --- who may ask --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "dashboard.js", "state.json", "metrics", "log.json?rank=0"])
def test_without_the_token_there_is_nothing_to_see(page: Page, path: str):
    for token in ("", "wrong", page.token[:-1], page.token + "x", page.token.swapcase()):
        reply = page.get(path, token=token)
        assert reply.status == 403
        assert list(reply.data) == ["error"]
    assert page.raw(f"/{path}").status == 403
    assert page.raw(f"/?token={page.token}").status == 403


def test_an_error_repeats_nothing_of_the_request(page: Page):
    reply = page.raw("/<script>alert(1)</script>")
    assert b"script" not in reply.body
    assert reply.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "", "[::2]:1"]
)
def test_a_name_that_was_pointed_at_this_machine_gets_no_answer(page: Page, host: str):
    assert page.get("state.json", host=host or " ").status == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:9", "[::1]:80", "LocalHost:80"])
def test_a_forwarded_port_may_be_another(page: Page, host: str):
    assert page.get("state.json", host=host).status == 200


def test_it_listens_on_this_machine_only():
    with listen() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_said_in_a_sentence(page: Page):
    with pytest.raises(MusterError, match=f"could not listen on port {page.port} of this machine"):
        listen(page.port)


def test_the_browser_may_trust_nothing_else(page: Page):
    for path in ("", "dashboard.js", "state.json", "metrics", "no-such-page"):
        headers = page.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_dashboard_is_read_only(page: Page, method: str):
    assert page.get("state.json", method=method).status == 501


def test_nonsense_does_not_end_the_server(page: Page):
    for nonsense in (b"\r\n\r\n", b"\x16\x03\x01\x00", b"GET\r\n\r\n", b"GET " + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"):
        # It need not hear all of it, and may hang up.
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", page.port), timeout=30) as peer:
            peer.sendall(nonsense)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
    assert page.get("").status == 200


def test_slow_connections_without_the_token_do_not_shut_others_out(page: Page):
    slow = [socket.create_connection(("127.0.0.1", page.port), timeout=30) for _ in range(80)]
    try:
        for peer in slow:
            with suppress(ConnectionError):  # the oldest have made room for others
                peer.sendall(b"GET / HT")
        wait_until("all of them to be taken", lambda: len(page.server._strangers) == 64, 60)
        for _ in range(70):
            assert page.get("").status == 200
    finally:
        for peer in slow:
            peer.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to connect as another user")
def test_connections_of_another_user_do_not_close_those_of_the_user_of_the_dashboard(page: Page):
    with ExitStack() as stack:
        own = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), timeout=30))
        os.seteuid(65534)
        try:
            for _ in range(200):
                stack.enter_context(socket.create_connection(("127.0.0.1", page.port), timeout=30))
        finally:
            os.seteuid(0)
        own.sendall(f"GET /{page.token}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert own.recv(100).startswith(b"HTTP/1.1 200 ")
        assert page.get("").status == 200


def test_a_request_that_never_ends_is_cut_off(page: Page, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_module, "_REQUEST_LIMIT", 0.2)
    with socket.create_connection(("127.0.0.1", page.port), timeout=60) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert peer.recv(100) == b""


# --- what is answered ---------------------------------------------------------------------------------------


def test_the_address_leads_to_the_dashboard_with_or_without_its_last_slash(page: Page):
    assert b"<title>Muster</title>" in page.get("").body
    assert page.raw(f"/{page.token}").headers["Location"] == f"/{page.token}/"


def test_the_state_is_the_one_all_views_use(page: Page):
    assert page.get("state.json").data == json.loads(json.dumps(ended(job()).as_data()))


def test_the_metrics_are_those_of_the_state(page: Page):
    reply = page.get("metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'muster_job_ranks{job="20261115-101500-train-3f9a"} 8\n' in reply.body


def test_each_second_only_what_is_new_is_sent(page: Page):
    state = ended(job())
    view = page.get(f"view.json?since={state.history[-3].time}").data
    assert len(view["state"]["history"]) == 2
    assert view["state"]["reports"][0]["stacks"] == 8
    assert view["status"] == "failed 1"
    assert page.get("stacks.json?report=0").data == {str(rank): stack for rank, stack in STACKS.items()}


def test_logs_come_in_pieces_and_can_be_searched(page: Page):
    piece = page.get("log.json?rank=3&attempt=0").data
    assert piece["lines"][-1][1] == HOSTILE
    assert len(page.get("log.json?rank=3").body) < 200_000
    found = page.get("log.json?find=NEEDLE&attempt=0").data
    assert [line[0] for line in found["lines"]] == list(range(8))
    (line,) = page.get("log.json?rank=3&find=needle").data["lines"]
    assert line[1] == "needle in rank 3"


def test_a_rank_that_has_written_nothing_has_an_empty_log(page: Page):
    assert page.get("log.json?rank=99").data["lines"] == []
    assert page.get("log.json?rank=99&find=x").data["size"] == 0


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "static/dashboard.js",
        "jobs/no-such-job/",
        "jobs/../state.json",
        "jobs/..%2f..%2fetc/",
        "log.txt?rank=99",
        "log.txt?rank=..%2f..%2fstate.json",
        "..%2f..%2fstate.json",
        "log.json?rank=../../etc/passwd",
        "log.json?rank=nan",
        "log.json?rank=-1",
        "log.json",
        "stacks.json?report=7",
        "stacks.json?report=x",
        "view.json?since=inf",
        "favicon.ico",
    ],
)
def test_what_is_not_there_is_said(page: Page, path: str):
    assert page.get(path).status == 404


def test_a_job_of_which_nothing_is_known_yet_is_said(tmp_path: Path):
    page = Page(tmp_path)
    assert page.get("state.json").status == 404
    assert page.get("view.json").data["state"] is None
    page.server.shutdown()
    page.server.server_close()


def test_the_log_of_a_rank_can_be_downloaded_whole(page: Page, tmp_path: Path):
    reply = page.get("log.txt?rank=3")
    assert reply.headers["Content-Disposition"] == (
        'attachment; filename="20261115-101500-train-3f9a-attempt-0-rank-3.log"'
    )
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.body.startswith(b"step 0 loss 3.0000 rank 3\n")
    assert reply.body.endswith(f"{HOSTILE}\n".encode())
    assert page.get("log.txt?rank=3", method="HEAD").body == b""


def test_lines_have_the_time_at_which_they_were_written(tmp_path: Path):
    folder = write_folder(tmp_path / "20261115-101500-train-3f9a", ended(job()))
    (folder / "attempt-0/rank-3.log").write_text("one\ntwo\n")
    (folder / "attempt-0/order").write_text("3 1 4 1000\n3 1 4 2500\n")
    with served(folder) as page:
        assert page.get("log.json?rank=3").data["lines"] == [[0, "one", 1.0], [4, "two", 2.5]]
        assert page.get("log.json?find=two").data["lines"] == [[3, 4, "two", 2.5]]
        assert page.get("log.json?rank=0").data["lines"][-1][2] is None


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_log_that_is_not_a_file_is_an_error_and_is_not_read(make: Callable[[Path], None], tmp_path: Path):
    folder = write_folder(tmp_path / "20261115-101500-train-3f9a", ended(job()))
    log = folder / "attempt-0/rank-3.log"
    log.unlink()
    make(log)
    with served(folder) as page:
        for asked in ("", "&since=0", "&find=step"):
            reply = page.get(f"log.json?rank=3{asked}")
            assert reply.status == 404
            assert "could not read the log" in reply.data["error"]
        assert page.get("log.txt?rank=3").status == 404
        assert page.get("log.json?rank=0&since=0").data["lines"]


def test_all_jobs_of_the_user_are_listed_and_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    jobs = tmp_path / "muster/jobs"
    for name in ("20261115-101500-train-3f9a", "20261115-111500-train-0001"):
        write_folder(jobs / name, replace(ended(job()), id=name))
    (jobs / "20261115-121500-train-0002").mkdir()
    (jobs / "something-else").mkdir()
    with served(jobs / "20261115-101500-train-3f9a") as page:
        listed = page.get("jobs.json").data["jobs"]
        assert [entry["id"][-4:] for entry in listed] == ["0002", "0001", "3f9a"]
        assert [entry["status"] for entry in listed] == ["unknown", "failed 1", "failed 1"]
        assert b"<title>" in page.get("jobs/").body
        assert page.get("jobs").headers["Location"] == "jobs/"
        assert page.get("jobs/20261115-111500-train-0001").headers["Location"] == "20261115-111500-train-0001/"
        other = page.get("jobs/20261115-111500-train-0001/state.json").data
        assert other["id"] == "20261115-111500-train-0001"
        assert page.get("jobs/20261115-111500-train-0001/dashboard.js").status == 200
        assert page.get("jobs/something-else/").status == 404


# --- the files ----------------------------------------------------------------------------------------------


def test_the_dashboard_never_makes_html_of_text():
    for file in STATIC.glob("*.js"):
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|DOMParser", text), (
            file.name
        )


def test_the_dashboard_needs_nothing_from_elsewhere():
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.[a-z]", text), file.name


def test_findings_link_to_pages_that_the_dashboard_serves_and_the_wheel_has(page: Page):
    pages = set(re.findall(r'\["([a-z-]+\.md)", "', (STATIC / "findings.js").read_text()))
    assert pages == docs_pages.PAGES
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {f"docs/{name}": f"muster/dashboard/docs/{name}" for name in pages}
    assert page.get("docs/hangs.md").body == (ROOT / "docs" / "hangs.md").read_bytes()
    assert [page.get(f"docs/{name}").status for name in ("nosuch.md", "../pyproject.toml", "")] == [404] * 3
