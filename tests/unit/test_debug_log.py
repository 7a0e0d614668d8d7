"""The debug log: what is in it, what never is, how large it gets, and what is said of an error of Muster's own."""

from __future__ import annotations

import asyncio
import io
import logging
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from messages import UP

from muster.cli import main
from muster.controller import debug_log
from muster.controller.debug_log import command_line, internal_error, log_event, logged
from muster.controller.links.link import AgentLink
from muster.engines.engine import AgentSpec, Launch
from muster.engines.local.engine import LocalEngine
from muster.errors import EXIT_MUSTER, MusterError, UsageError
from muster.hosts import Host
from muster.job import Job
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.rank import kept_errors, torch_adapter
from muster.shared.wire import GREETING, encode
from muster.spec import RunSpec

LAUNCH = Launch(engine=LocalEngine(), commands=(), channel="pipes")
log = logging.getLogger("muster.test")


class Stage:
    """The log of one job, in a folder of its own."""

    def __init__(self, folder: Path, **job: Any) -> None:
        self.path = folder / "debug.log"
        self.out = io.StringIO()
        self.screen = Screen(streams={1: self.out, 2: self.out})
        self.logs = LogFiles(self.screen.warning)
        spec = RunSpec(
            target="t.py", cwd="/", **{name: job.pop(name) for name in ("args", "env", "debug") if name in job}
        )
        given = Job(id="j", spec=spec, hosts=(), **{"carried": {}, **job})
        self.logged = logged(given, LAUNCH, folder, self.logs, self.screen)

    def close(self) -> tuple[str, str]:
        """The text of the log, and the screen."""
        self.logs.close()
        self.screen.close()
        return self.path.read_text(), self.out.getvalue()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield tmp_path / "muster"
    root = logging.getLogger("muster")
    assert (root.level, root.propagate, len(root.handlers)) == (logging.NOTSET, True, 1)


def test_a_log_has_the_records_of_its_job_and_what_the_screen_said(tmp_path: Path):
    stage = Stage(tmp_path)
    with stage.logged:
        log.debug("a %s", "detail")
        stage.screen.warning("said")
    log.debug("too late")
    text, shown = stage.close()
    first, second, *rest = text.splitlines()
    assert " INFO muster.debug_log: muster " in first
    assert " INFO muster.debug_log: engine local on " in second
    assert [line.split(" ", 2)[2] for line in rest] == ["DEBUG muster.test: a detail", "INFO muster.screen: said"]
    assert shown == "muster: said\n"
    assert stat.S_IMODE(stage.path.stat().st_mode) == 0o600


def test_debug_shows_the_log_and_nothing_twice(tmp_path: Path):
    stage = Stage(tmp_path, debug=True)
    with stage.logged:
        log.debug("a detail")
        stage.screen.warning("said")
    _, shown = stage.close()
    assert " DEBUG muster.test: a detail\nmuster: said\n" in shown
    assert all(line.startswith("muster: debug: ") for line in shown.splitlines()[:-1])
    assert shown.count("said") == 1


def test_two_jobs_of_one_process_have_logs_of_their_own(tmp_path: Path):
    stages = {name: Stage(tmp_path / name) for name in ("a", "b")}
    both = threading.Barrier(2)

    def work(name: str) -> None:
        with stages[name].logged:
            both.wait(30)
            log.info("from %s", name)
            both.wait(30)

    threads = [threading.Thread(target=work, args=name) for name in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, stage in stages.items():
        text, _ = stage.close()
        assert [other for other in stages if f"from {other}" in text] == [name]


def test_an_error_of_muster_ends_the_job_as_one_sentence_with_its_traceback_in_the_log(tmp_path: Path):
    stage = Stage(tmp_path)
    with pytest.raises(MusterError) as caught, stage.logged:
        raise LookupError("sick")
    text, _ = stage.close()
    assert caught.value.message.startswith("internal error in Muster: LookupError: sick (test_debug_log.py:")
    assert caught.value.message.endswith(f"); please report it with {stage.path}")
    assert "ERROR muster.debug_log: internal error: LookupError: sick" in text
    assert "Traceback (most recent call last):" in text


def test_a_mistake_of_the_users_stays_what_it_is(tmp_path: Path):
    stage = Stage(tmp_path)
    with pytest.raises(UsageError), stage.logged:
        raise UsageError("no such host")
    text, _ = stage.close()
    assert "INFO muster.debug_log: the job failed: no such host\nTraceback" in text


def test_the_log_is_bounded_and_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(debug_log, "LARGEST", 2000)
    stage = Stage(tmp_path)
    with stage.logged:
        for number in range(100):
            log.debug("line %d of a log that is far too long", number)
    text, _ = stage.close()
    assert text.startswith("older lines are in debug.log.1\n")
    assert "line 99 of" in text
    older = stage.path.with_name("debug.log.1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["debug.log", "debug.log.1"]
    assert max(len(text), len(older.read_text())) < 2200
    assert stat.S_IMODE(stage.path.stat().st_mode) == stat.S_IMODE(older.stat().st_mode) == 0o600


def test_secrets_are_not_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    stage = Stage(tmp_path, env={"MY_API_KEY": "0123456789"}, args=("--password=hunter22",))
    with stage.logged:
        log.debug("it says hf_abcdefgh and 0123456789")
        log.debug("started %s", command_line(["podman", "run", "-e", "DB_URL=postgres://me:pw@db", "image"]))
        log_event("h1", {"t": "exception", "rank": 3, "message": "bad key 42", "traceback": "in train.py"}, None)
        log_event("h1", {"t": "piece", "piece": "gASVpickle"}, None)
        log_event("h1", {"t": "out", "rank": 0, "text": "printed"}, None)
    text, _ = stage.close()
    assert "it says *** and ***" in text
    assert "podman run -e DB_URL=*** image" in text
    assert "h1: exception rank=3\n" in text
    for secret in ("hunter22", "postgres", "bad key", "train.py", "pickle", "printed"):
        assert secret not in text


def test_what_agents_report_has_their_host_and_the_time_of_our_clock(tmp_path: Path):
    stage = Stage(tmp_path)
    with stage.logged:
        log_event("h1", {"t": "log", "text": "started rank 0"}, 0.25)
        log_event("h2", {"t": "unseen", "what": "its GPUs", "why": "OSError: no", "traceback": "Traceback\n  x"}, None)
    *_, note, error, first, second = stage.close()[0].splitlines()
    assert note.endswith(".250 DEBUG muster.agent: h1: started rank 0")
    assert note.startswith(("1970", "1969"))
    assert error.endswith(" ERROR muster.agent: h2: unseen what=its GPUs why=OSError: no")
    assert (first, second) == ("Traceback", "  x")


def test_an_error_outside_any_job_is_kept_in_the_state_folder(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(argv: list[str]) -> int:
        raise LookupError("sick")

    monkeypatch.setattr("muster.cli.ps.main", fail)
    assert main(["ps"]) == EXIT_MUSTER
    said = capsys.readouterr().err
    assert said.startswith("error: internal error in Muster: LookupError: sick (test_debug_log.py:")
    assert said.endswith(f"; please report it with {state}/debug.log\n")
    kept = state / "debug.log"
    assert ", in fail\n" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_where_nothing_can_be_written_the_traceback_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    try:
        raise LookupError("sick")
    except LookupError as error:
        said = internal_error(error)
    assert "please report it with this traceback:\nTraceback" in said


def test_a_bug_that_ends_an_agent_is_reported_with_its_traceback_in_the_log(tmp_path: Path):
    stage = Stage(tmp_path)
    events: list[str] = []

    async def main() -> None:
        spec = AgentSpec(host=Host(name="h1"), name="h1")
        link = AgentLink(spec, lambda link, event: events.append(event), lambda host, text: None)
        note = encode({"t": "log", "text": "a note", "time": 1.0})
        failed = encode({"t": "failed", "error": "LookupError: sick", "traceback": "Traceback\n  in turn"})
        with stage.logged:
            link.on_data(GREETING + encode(UP) + note + failed)
        assert link.lost is not None
        assert link.lost.why == (
            f"its agent failed: internal error in Muster: LookupError: sick; please report it with {stage.path}"
        )

    asyncio.run(main())
    text, _ = stage.close()
    assert events == [{"t": "host", "state": "lost"}], "a note is for the log alone"
    assert "h1: a note\n" in text
    assert "ERROR muster.debug_log: internal error: LookupError: sick\nTraceback\n  in turn\n" in text


def test_an_error_that_costs_a_look_at_a_rank_is_kept_once(tmp_path: Path):
    def dump(**_: Any) -> str:
        raise LookupError("another form")

    changed: Any = ModuleType("torch._C._distributed_c10d")
    changed._dump_fr_trace_json = dump
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch._C._distributed_c10d", changed)
        for _ in range(2):
            assert torch_adapter.group_numbers() == {}
    (kept,) = kept_errors.take()
    assert kept_errors.take() == []
    stage = Stage(tmp_path)
    with stage.logged:
        log_event("h1", {**kept, "rank": 3}, None)
    text, _ = stage.close()
    what = "rank 3: reading the counters of the flight recorder failed: LookupError"
    assert f"ERROR muster.agent: h1: {what}\nTraceback (most recent call last):\n" in text
