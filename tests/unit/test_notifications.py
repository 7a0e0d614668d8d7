"""`--notify`: a command, the desktop or a webhook hears that a job ended or hangs; its failure is one warning."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from sample_status import make_status
from waiting import process_state, wait_until

from muster.controller.notifications import Notice, Notifier, check_ways, deliver, shown
from muster.errors import UsageError
from muster.jobs.state import Report

NOTICE = Notice(job="job-1", event="end", message="train.py: failed", exit_code=3, host="box")


class Webhook(HTTPServer):
    """Keeps what is posted to it."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.location = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/secret"


class _Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.headers.append(dict(self.headers))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_command_finds_what_happened_in_its_environment(tmp_path: Path):
    file = tmp_path / "got"
    command = f'echo "$MUSTER_JOB|$MUSTER_EVENT|$MUSTER_EXIT_CODE|$MUSTER_MESSAGE" > {file}'
    assert deliver(command, NOTICE) == ""
    assert file.read_text() == "job-1|end|3|train.py: failed\n"


def test_a_message_is_never_code(tmp_path: Path):
    notice = Notice(job="job-1", event="end", message=f"$(touch {tmp_path}/bad) `touch {tmp_path}/bad`", exit_code=0)
    assert deliver('test -n "$MUSTER_MESSAGE"', notice) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_webhook_gets_json_with_a_text_that_slack_shows(webhook: Webhook):
    assert deliver(webhook.url, NOTICE) == ""
    assert webhook.bodies == [
        {
            "job": "job-1",
            "event": "end",
            "exit_code": 3,
            "message": "train.py: failed",
            "host": "box",
            "text": "train.py: failed (job-1 on box)",
        }
    ]
    assert webhook.headers[0]["X-Message"] == "{{.text}}"  # for ntfy


def test_a_webhook_that_refuses_is_a_problem(webhook: Webhook):
    webhook.status = 404
    assert deliver(webhook.url, NOTICE) == "the server answered 404 Not Found"
    assert "refused" in deliver("http://127.0.0.1:9/x", NOTICE)


def test_a_webhook_that_redirects_is_a_problem(webhook: Webhook):
    webhook.status = 301  # urllib would follow with a GET, and the notice would be lost
    webhook.location = "/elsewhere"
    assert deliver(webhook.url, NOTICE) == "the server answered 301 Moved Permanently"
    assert len(webhook.bodies) == 1


def test_a_command_that_fails_is_a_problem_with_its_last_line():
    assert deliver("echo first >&2; echo 'no such user' >&2; exit 4", NOTICE) == "exit code 4: no such user"


@pytest.mark.timeout(60)
def test_a_command_that_writes_without_end_is_stopped_and_does_not_fill_the_memory():
    tracemalloc.start()
    try:
        assert deliver("exec yes >&2", NOTICE, 1.0) == "stopped after 1 s"
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path):
    file = tmp_path / "pid"
    begin = time.monotonic()
    assert deliver(f"sleep 300 & echo $! > {file}; wait", NOTICE, limit=0.5) == "stopped after 0.5 s"
    assert time.monotonic() - begin < 60
    with pytest.raises(ProcessLookupError):
        wait_gone(int(file.read_text()))


def wait_gone(pid: int) -> None:
    """Raise ProcessLookupError once a process has gone; a zombie of init's takes a moment."""
    for _ in range(400):
        os.kill(pid, 0)
        time.sleep(0.05)


def test_a_process_that_a_command_leaves_in_the_background_is_killed(tmp_path: Path):
    assert deliver(f"sleep 1000 & echo $! > {tmp_path}/pid", NOTICE, 1.0) == "stopped after 1 s"
    wait_until("the end", lambda: process_state(int((tmp_path / "pid").read_text())) in ("", "Z"), 30)


def test_the_desktop_gets_the_message_as_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/got\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert deliver("desktop", NOTICE) == ""
    assert (tmp_path / "got").read_text().splitlines()[-3:] == ["--", "Muster: job-1", "train.py: failed"]


def test_a_hang_is_sent_once_and_the_end_afterwards(tmp_path: Path):
    status, warnings, file = make_status()[0], list[str](), tmp_path / "got"
    notifier = Notifier(status, (f"echo $MUSTER_EVENT >> {file}", "exit 2"), warnings.append)
    status.reports.append(Report(kind="hang", time=0.0, sentence="rank 2 waits"))
    notifier.tick()
    notifier.tick()
    status.ended(1, "rank 0 failed")
    asyncio.run(notifier.end())
    assert sorted(file.read_text().split()) == ["end", "hang"]
    assert warnings == ["--notify exit 2: exit code 2"] * 2


def test_a_notice_that_is_not_sent_in_time_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("muster.controller.notifications.LIMIT", 0.0)
    status, warnings = make_status()[0], list[str]()
    status.ended(0, "")
    asyncio.run(Notifier(status, ("sleep 5",), warnings.append).end())
    assert warnings == ["--notify sleep 5: not sent within 0 s"]


def test_a_job_that_was_stopped_has_not_failed(tmp_path: Path):
    status = make_status()[0]
    status.stopped_by = "Ctrl-C"
    status.ended(130, "stopped by Ctrl-C after 3.0 s")
    asyncio.run(Notifier(status, (f"echo $MUSTER_MESSAGE > {tmp_path}/got",), lambda text: None).end())
    assert (tmp_path / "got").read_text() == f"{status.job.spec.command}: stopped by Ctrl-C after 3.0 s\n"


def test_a_job_without_notify_waits_for_nothing():
    notifier = Notifier(make_status()[0], (), lambda text: None)
    begin = time.monotonic()
    asyncio.run(notifier.end())
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    "way", ["", "htps://example.org/x", "ftp://example.org", "no-such-command", "https://", "http://h/a b"]
)
def test_what_can_never_work_is_refused_at_once(way: str):
    with pytest.raises(UsageError):
        check_ways([way])


@pytest.mark.parametrize("way", ["desktop", "true", "mail -s done me@example.org", "http://h:1/x", "./notify.sh"])
def test_commands_the_desktop_and_urls_are_accepted(way: str):
    check_ways([way])


def test_a_warning_does_not_show_the_secret_of_a_url():
    assert shown("https://user:pw@hooks.slack.com/services/T0/B0/secret") == "https://hooks.slack.com/…"
    assert shown("https://user:p@w@hooks.slack.com#secret") == "https://hooks.slack.com/…"
