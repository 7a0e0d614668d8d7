"""Secrets: no command line, no output that others can read and no batch script of theirs shows a value."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.api import execution
from muster.api.run_options import spec_of
from muster.cli import main, run
from muster.cli.submit import make_request, parser, split
from muster.engines.slurm.batch import Slurm
from muster.errors import UsageError
from muster.submit.batch_script import write_script
from muster.submit.request import Activation
from muster.user_file import MOST_BYTES, read_user_file


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "my.env").write_text("A=1\n")
    return tmp_path


def variables_of_stdin(source: int, path: str = "-") -> Mapping[str, str]:
    before = os.dup(0)
    os.dup2(source, 0)
    try:
        options, command = run.parse(["--env-file", path, "train.py"])
        return spec_of(options, command).env
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_variables_can_come_over_stdin():
    source, sink = os.pipe()
    os.write(sink, b"API_KEY=hush\nA='b c'\n")
    os.close(sink)
    assert variables_of_stdin(source) == {"API_KEY": "hush", "A": "b c"}
    os.close(source)


def test_stdin_may_be_a_socket_or_a_file_of_which_a_part_has_been_read(folder: Path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"A=1\n")
        ours.shutdown(socket.SHUT_WR)
        assert variables_of_stdin(theirs.fileno()) == {"A": "1"}
    (folder / "script").write_text("read first\nA=2\n")
    with open(folder / "script", "rb", buffering=0) as file:
        file.read(11)
        assert variables_of_stdin(file.fileno()) == {"A": "2"}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("path", ["-", "/dev/fd/0"])
def test_a_command_that_asks_for_a_passphrase_may_take_longer_than_a_file(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_user_file, "__kwdefaults__", {"limit": 0.0, "most": MOST_BYTES})
    source, sink = os.pipe()
    command = threading.Timer(0.3, lambda: (os.write(sink, b"A=1\n"), os.close(sink)))
    command.start()
    assert variables_of_stdin(source, path) == {"A": "1"}
    command.join()
    os.close(source)


@pytest.mark.parametrize("path", ["-", "/dev/fd/0", "/dev/stdin", "pipe.env"])
@pytest.mark.parametrize("command", [["submit", "--slurm", "--dry-run"], ["run", "--slurm-args", "-N1", "--dry-run"]])
def test_a_job_that_starts_later_needs_a_file(
    command: list[str], path: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("muster.api.env_file.read_user_file", lambda path, **limits: b"")  # `run` reads it first
    os.mkfifo(folder / "pipe.env")
    assert main([*command, "--env-file", path, "train.py"]) == 2
    assert f"--env-file {path}: the job reads it when it starts, so it must be a file" in capfd.readouterr().err
    assert main([*command, "--env-file", "my.env", "train.py"]) == 0


VALUES = ["it's $HOME `x` \\", "line 1\nline 2", "", "-dash"]


@pytest.mark.parametrize("value", VALUES)
def test_a_batch_script_passes_a_secret_to_its_ranks_without_a_command_line(value: str, folder: Path):
    line = split(["--slurm", "--env", f"WANDB_API_KEY={value}", "--env=LEVEL=3", "train.py", "KEY=script's"])
    request = make_request(parser().parse_args(line.own), line, Slurm())
    request = replace(request, activation=Activation(comment="None."), folder=str(folder))
    text = write_script(request, Slurm())
    assert "muster run --env WANDB_API_KEY --env LEVEL=3 train.py" in text
    assert "Written by: muster submit --slurm --env WANDB_API_KEY --env LEVEL=3" in text
    programs = folder / "bin"
    programs.mkdir()
    (programs / "muster").write_text('#!/bin/sh\nprintf "%s\\n" "$*"; printf %s "$WANDB_API_KEY"\n')
    (programs / "muster").chmod(0o755)
    (folder / "job.sh").write_text(text)
    env = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "job.sh"], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"run --env WANDB_API_KEY --env LEVEL=3 train.py KEY=script's\n{value}"


def test_a_variable_without_a_value_comes_from_here_and_is_named_if_it_is_not_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_KEY", "hush")
    options, command = run.parse(["--env", "API_KEY", "train.py"])
    assert spec_of(options, command).env == {"API_KEY": "hush"}
    monkeypatch.delenv("API_KEY")
    options, command = run.parse(["--env", "API_KEY", "train.py"])
    with pytest.raises(UsageError, match="API_KEY"):
        spec_of(options, command)


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_the_address_of_a_dashboard_is_not_written_where_others_can_read_it(
    mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    address = "http://127.0.0.1:4711/the-token/"
    monkeypatch.setattr("muster.dashboard.dashboard_process.start", lambda folder, port: address)
    said: list[str] = []
    job = SimpleNamespace(id="j", spec=SimpleNamespace(dashboard_port=0))
    controller: Any = SimpleNamespace(folder=folder, job=job, screen=SimpleNamespace(notice=said.append))
    before, output = os.dup(2), os.open("train-4711.out", os.O_WRONLY | os.O_CREAT, mode)
    os.fchmod(output, mode)
    os.dup2(output, 2)
    try:
        said.append(execution._show_dashboard(controller))
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(output)
    assert all(("the-token" in line) == (mode == 0o600) for line in said), said
    if mode == 0o644:
        kept = folder / "dashboard-address"
        assert str(kept) in said[0]
        assert kept.read_text() == f"{address}\n"
        assert kept.stat().st_mode & 0o777 == 0o600
