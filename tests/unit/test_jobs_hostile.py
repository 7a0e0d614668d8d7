"""Job directories that are damaged, foreign or hostile: every command says one sentence or nothing about them."""

from __future__ import annotations

import json
import os
import pwd
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kept_jobs import keep, state_of

from muster.cli import main
from muster.home import state_folder
from muster.jobs.state import AttemptState, Failure, HostChangeState, HostState, RankState, Report

pytestmark = pytest.mark.timeout(60)

BAD = "20261115-080000-train-bbbb"
ESCAPE = "\x1b[2J\x07\r\nx\udcff"
COMMANDS = [
    ["ps"],
    ["ps", "--json"],
    ["ps", "--all"],
    ["show"],
    ["show", BAD],
    ["logs", BAD],
    ["logs", BAD, "-t", "-n", "3", "--since", "1d"],
    ["logs", BAD, "-n", "9" * 30],
    ["logs", BAD, "--rank", "0"],
    ["top", BAD, "--once"],
    ["attach", BAD],
    ["stop", BAD],
    ["stop", "--all"],
    ["ps", "--prune", "--older", "1d"],
]


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # sockets need short paths
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        yield Path(folder) / "muster" / "jobs"


def state_json(text: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "state.json").write_bytes(text)


def changed(**fields: Any) -> Callable[[Path], object]:
    data = {**state_of(BAD, phase="ended", exit_code=1).as_data(), **fields}
    return lambda folder: (folder / "state.json").write_text(json.dumps(data))


def fifo(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def directory(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir(parents=True)

    return make


def file(name: str, content: bytes) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return make


def silent_socket(folder: Path) -> None:
    """A socket that somebody left."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))


HUGE_ATTEMPT = {
    "number": -1,
    "begin": -1e15,
    "world_size": 1 << 52,
    "hosts": ["a"] * 9,
    "slots": [-7, 1 << 52],
    "lost_at": 1e15,
}

DAMAGE: dict[str, Callable[[Path], object]] = {
    "nested": state_json(b"[" * 200_000),
    "nested state": state_json(b'{"id":' * 100_000),
    "number": state_json(b"1" * 10_000),
    "binary": state_json(bytes(range(256))),
    "fifo": fifo("state.json"),
    "directory": directory("state.json"),
    "null": changed(command=None),
    "begin": changed(begin="now"),
    "infinite": changed(now=float("inf"), begin=float("nan")),
    "far": changed(now=1e300, begin=-1e300),
    "early": changed(now=1e15, begin=-1e15),
    "phase": changed(phase="dancing"),
    "sentence": changed(sentence=[1]),
    "reports": changed(reports=[{"kind": "hang", "time": 1e15, "sentence": "x", "stacks": {"x": 1}}]),
    "failures": changed(failures=[{"attempt": 0, "time": 1e15, "sentence": "", "lines": [""]}]),
    "failures of nothing": changed(failures={"a": 1}),
    "attempts of nothing": changed(attempts=[{"number": 0}]),
    "attempts": changed(attempts=[HUGE_ATTEMPT, {**HUGE_ATTEMPT, "number": 0, "recovery": 1e15}]),
    "deadline": changed(
        phase="running", controller_birth="x", hosts=[{"name": "a", "state": "draining", "deadline": 1e15}]
    ),
    "ranks": changed(ranks=[[]]),
    "process": changed(phase="running", controller=-1, controller_birth=""),
    "process far": changed(phase="running", controller=1 << 40, controller_birth="x"),
    "socket-at": file("socket-at", b"\xff\xfe"),
    "socket-at zero": file("socket-at", b"/tmp/a\0b"),
    "socket-at fifo": fifo("socket-at"),
    "socket": silent_socket,
    "socket file": file("socket", b""),
    "socket directory": directory("socket"),
    "attempt file": file("attempt-0", b""),
    "attempt name": directory("attempt-99999999999999999999"),
    "order": file("attempt-0/order", b"\xff 1 -1 x\n"),
    "order directory": directory("attempt-0/order"),
    "log directory": directory("attempt-0/rank-0.log"),
    "log fifo": fifo("attempt-0/rank-0.log"),
    "screen fifo": fifo("screen.log"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
@pytest.mark.parametrize("phase", ["ended", "running"])
def test_a_damaged_job_directory_gives_a_sentence_and_never_a_traceback(
    damage: str, phase: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = keep(state_of(BAD, phase=phase, exit_code=1, controller_birth="00000000-1", now=100.0))
    DAMAGE[damage](folder)
    for command in COMMANDS:
        code = main(command)
        said = capfd.readouterr()
        assert code in (0, 2, 125), (command, said)
        assert "internal error" not in said.err, (command, said.err)
        assert "Traceback" not in said.err, (command, said.err)


@pytest.mark.parametrize("phase", ["ended", "connecting"])
def test_what_a_job_directory_contains_cannot_move_the_cursor(phase: str, capfd: pytest.CaptureFixture[str]) -> None:
    attempt = AttemptState(
        number=0, begin=1.0, world_size=1, hosts=(ESCAPE,), slots=(1,), lost_to=ESCAPE, swaps={ESCAPE: ESCAPE}
    )
    failure = Failure(attempt=0, time=1.0, sentence=ESCAPE, detail=ESCAPE, lines=(ESCAPE,), host=ESCAPE)
    fields: dict[str, Any] = {
        "command": ESCAPE,
        "engine": ESCAPE,
        "host": ESCAPE,
        "sentence": ESCAPE,
        "stopped_by": ESCAPE,
        "hosts": (HostState(name=ESCAPE), HostState(name=ESCAPE, state="lost", why=ESCAPE)),
        "attempts": (attempt, attempt),
        "host_changes": (HostChangeState(time=1.0, host=ESCAPE, state="lost", why=ESCAPE),),
        "ranks": (RankState(rank=0, host=ESCAPE, local_rank=0, place=ESCAPE),),
        "reports": (Report(kind="hang", time=1.0, sentence=ESCAPE, detail=ESCAPE, ranks=(0,), stacks={0: ESCAPE}),),
        "failures": (failure,),
        "phases": {ESCAPE: 1.0},
        "controller_birth": "x",
    }
    keep(state_of(BAD, phase=phase, exit_code=1, **fields))
    for command in COMMANDS:
        main(command)
        said = capfd.readouterr()
        assert "\x1b" not in said.out + said.err, command
        assert "\x07" not in said.out + said.err, command


def test_a_name_with_escapes_is_no_job(jobs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (jobs / "20261115-080000-\x1b[2J-bbbb").mkdir(parents=True)
    (jobs / "20261115-080000-file-bbbb").write_text("")
    assert main(["ps"]) == 0
    assert capfd.readouterr().out == ""
    assert main(["logs", "\x1b[2J"]) == 2
    assert "\x1b" not in capfd.readouterr().err


def test_only_a_path_that_muster_chose_is_taken_for_a_socket(jobs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "precious"
    mine.write_text("x")
    folder = keep(state_of(BAD, controller_birth="00000000-1"))
    (folder / "socket-at").write_text(str(mine))
    main(["ps"])
    assert mine.exists()


def test_one_damaged_job_directory_among_50_is_shown_as_damaged(jobs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(49):
        keep(state_of(f"20261114-0800{number:02}-other-aaaa", phase="ended", exit_code=3))
    folder = keep(state_of(BAD, phase="ended"))
    (folder / "state.json").write_bytes(b"[" * 100_000)
    assert main(["ps", "--all", "--json"]) == 0
    listed = {job["id"]: job["status"] for job in json.loads(capfd.readouterr().out)}
    assert listed.pop(BAD) == "damaged"
    assert [*listed.values()] == ["failed 3"] * 49
    assert main(["ps"]) == 0
    assert "    state.json is damaged\n" in capfd.readouterr().out
    assert main(["show", BAD]) == 0
    assert f"job {BAD} is damaged: state.json is damaged" in capfd.readouterr().out


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give files away")
def test_a_job_directory_of_another_user_is_shown_and_not_believed(
    jobs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = keep(state_of(BAD, phase="running", host="elsewhere"))
    ran = tmp_path / "ran"
    place = {"host": {"name": "h"}, "ssh": ["/bin/sh", "-c", f"touch {ran}"], "confirmed": True}
    (folder / "remote.json").write_text(json.dumps(place))
    silent_socket(folder)
    for path in (folder, *folder.iterdir()):
        os.chown(path, 65534, 65534)
    for command in COMMANDS:
        assert main(command) in (0, 2), command
    assert not ran.exists()
    capfd.readouterr()
    assert main(["ps"]) == 0
    assert "state.json belongs to another user (nobody)" in capfd.readouterr().out


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_a_job_directory_without_permission_does_not_hide_the_others(
    jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keep(state_of(BAD, phase="running"))
    for parent in (jobs, jobs.parent, jobs.parent.parent):
        os.chown(parent, 65534, 65534)
    os.seteuid(65534)  # the user who typed `sudo -E muster run` before
    try:
        keep(state_of("20261114-080000-other-aaaa", phase="ended", exit_code=3))
        for command in COMMANDS:
            assert main(command) in (0, 2), command
        capfd.readouterr()
        assert main(["ps"]) == 0
    finally:
        os.seteuid(0)
    said = capfd.readouterr().out
    assert "could not read state.json (permission denied)" in said
    assert "failed 3" in said


@pytest.mark.parametrize("home", ["", ".", "home", None])
@pytest.mark.parametrize("state", ["", "state", None])
def test_jobs_are_kept_in_the_home_directory_whatever_the_environment_says(
    home: str | None, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HOME", home), ("XDG_STATE_HOME", state)):
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    assert state_folder() == Path(pwd.getpwuid(os.getuid()).pw_dir, ".local/state/muster")


def test_a_user_without_a_home_directory_gets_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert main(["ps"]) == 125
    said = capfd.readouterr().err
    assert said.startswith("error: could not determine your home directory (HOME is not an absolute path, and user ")
    assert said.endswith("hint: set XDG_STATE_HOME to a directory you can write to\n")


@pytest.mark.parametrize("command", [["stop"], ["logs"], ["top"], ["show"], ["attach"], ["drain", "", "h1"]])
def test_an_empty_job_name_is_no_job(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    keep(state_of(BAD, phase="running"))
    assert main([*command, ""] if len(command) == 1 else command) == 2
    assert "JOB is empty" in capfd.readouterr().err
