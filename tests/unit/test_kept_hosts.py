"""Kept hosts: which agents fit a run, what a zygote compares, and the command that `muster again` repeats."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from muster.agent.imported import READ_AT_START
from muster.controller.keep.fit import Here, fitting
from muster.controller.keep.keep_client import KeptHost
from muster.controller.keep.kept_text import kept_rows
from muster.controller.keep.messages import Entry
from muster.engines.engine import AgentSpec, StartCommand
from muster.errors import UsageError
from muster.hosts import Host, parse_hosts
from muster.jobs.run_command import RunCommand
from muster.spec import RunSpec

HERE = Here(stamp="s", terms={"umask": "22"})
ENTRY: Entry = {
    "id": 1,
    "host": "a",
    "argv": ["ssh", "a", "python"],
    "bridges": [],
    "remote": True,
    "stamp": "s",
    "terms": {"umask": "22"},
    "python": "/usr/bin/python3",
    "torch": "2.11",
    "begin": 100.0,
    "idle_since": 400.0,
    "keep": 1800.0,
    "lease": 20.0,
    "job": "",
}


def command(name: str, *argv: str, remote: bool = True) -> StartCommand:
    return StartCommand(argv=argv, agents=(AgentSpec(host=Host(name=name), name=name),), remote=remote)


A = command("a", "ssh", "a", "python")


def test_each_host_with_the_same_command_uses_its_kept_agent():
    found, reasons = fitting([A, command("b", "ssh", "b", "python")], [ENTRY], [], HERE)
    assert found == {"a": ENTRY}
    assert reasons == {}


@pytest.mark.parametrize(
    ("entry", "start", "why"),
    [
        ({"job": "j1"}, A, "job j1 uses it"),
        ({"stamp": "old"}, A, "Muster has changed"),
        ({}, command("a", "ssh", "a", "/opt/python"), "another Python"),
        ({"terms": {"umask": "77"}}, replace(A, remote=False), "another umask"),
    ],
)
def test_an_agent_that_does_not_fit_is_not_used_and_the_reason_is_given(
    entry: Mapping[str, object], start: StartCommand, why: str
):
    found, reasons = fitting([start], [{**ENTRY, **entry}], [], HERE)  # type: ignore[list-item]
    assert not found
    assert why in reasons["a"]


def test_limits_of_this_machine_do_not_matter_for_other_hosts():
    assert fitting([A], [{**ENTRY, "terms": {"umask": "77"}}], [], HERE)[0]


def test_one_of_two_agents_that_is_free_is_used():
    busy: Entry = {**ENTRY, "id": 2, "job": "j1"}
    assert fitting([A], [busy, ENTRY], [], HERE) == ({"a": ENTRY}, {})


def test_a_host_that_was_lost_while_idle_is_mentioned():
    gone = {"host": "a", "argv": list(A.argv), "why": "no message from it for 20 s"}
    _, reasons = fitting([A], [], [gone], HERE)  # type: ignore[list-item]
    assert reasons == {"a": "it was lost while idle (no message from it for 20 s)"}


@pytest.mark.parametrize(
    "name",
    ["LD_LIBRARY_PATH", "PYTHONPATH", "LC_ALL", "TZ", "MALLOC_ARENA_MAX", "OMP_PROC_BIND", "TORCH_LOGS", "MKL_DYNAMIC"],
)
def test_variables_that_are_read_at_the_start_count(name: str):
    assert READ_AT_START.fullmatch(name)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "WANDB_MODE", "OMP_NUM_THREADS", "MASTER_ADDR"])
def test_other_variables_can_differ(name: str):
    assert not READ_AT_START.fullmatch(name)


def test_kept_hosts_are_listed_with_memory_and_time_left():
    (titles, idle, used) = kept_rows(
        [KeptHost(entry=ENTRY, memory=180_000_000), KeptHost(entry={**ENTRY, "job": "j1"}, memory=None)], 700.0
    )
    assert titles[0] == "KEPT HOST"
    assert idle == ("a", "idle 5m", "172 MB", "10m", "25m", "/usr/bin/python3, torch 2.11")
    assert used[:3] == ("a", "used by j1", "-")


def test_a_stored_command_has_no_secret_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_TOKEN", "hush")
    monkeypatch.setenv("PLAIN_ONE", "1")
    typed = RunCommand.here(["--env", "WANDB_API_KEY=hush", "--env=MY_SECRET=hush", "--env", "A=1", "t.py", "--x", "2"])
    typed.write(tmp_path)
    (file,) = tmp_path.iterdir()
    assert "hush" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    again = RunCommand.read(tmp_path)
    assert again is not None
    assert again.argv == ("--env", "WANDB_API_KEY", "--env=MY_SECRET", "--env", "A=1", "t.py", "--x", "2")
    assert again.env["PLAIN_ONE"] == "1"
    assert "API_TOKEN" in again.secrets


def test_entering_a_stored_command_restores_its_directory_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before, cwd = dict(os.environ), os.getcwd()
    monkeypatch.setenv("TERM", "mine")
    monkeypatch.setenv("NEW", "1")
    try:
        unset = RunCommand(argv=("t.py",), cwd=str(tmp_path), env={"A": "1"}, secrets=("A_TOKEN",)).enter()
        assert Path.cwd() == tmp_path
        assert (os.environ["A"], os.environ["TERM"], "NEW" in os.environ) == ("1", "mine", False)
        assert unset == ["A_TOKEN"]
    finally:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(before)


def test_a_damaged_command_is_not_repeated(tmp_path: Path):
    assert RunCommand.read(tmp_path) is None
    for wrong in ("", "[]", '{"argv": 3}', json.dumps({"argv": ["a"], "cwd": 3, "env": [], "secrets": 1, "args": 0})):
        (tmp_path / "command.json").write_text(wrong)
        assert RunCommand.read(tmp_path) is None


def test_changes_replace_arguments_and_leave_hosts_out():
    spec = RunSpec(target="t.py", args=("--lr", "1"), hosts=parse_hosts("a:2,b:2"))
    changed = RunCommand(argv=(), cwd="", args=("--lr", "2"), without=("a",)).changed(spec)
    assert changed.args == ("--lr", "2")
    assert [host.name for host in changed.hosts or ()] == ["b"]
    with pytest.raises(UsageError, match="--without c: not a host of the job"):
        RunCommand(argv=(), cwd="", without=("c",)).changed(spec)
    with pytest.raises(UsageError, match="no host is left"):
        RunCommand(argv=(), cwd="", without=("a", "b")).changed(spec)


def test_keep_and_no_keep_exclude_each_other():
    with pytest.raises(UsageError, match="exclude each other"):
        RunSpec(target="t.py", keep=3.0, reuse=False)
