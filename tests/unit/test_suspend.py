"""Ctrl-Z where it cannot suspend the job, and what it does to ranks that read the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from muster.cli import suspend
from muster.controller.controller import Controller


@pytest.mark.parametrize("missing", ["shell", "process"])
def test_a_job_that_cannot_be_suspended_says_so_and_leaves_no_descriptor_open(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    controller = SimpleNamespace(screen=SimpleNamespace(warning=said.append), folder=tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(suspend, "_has_shell", lambda: missing != "shell")
    monkeypatch.setattr(suspend, "_open_terminal", lambda: os.open(os.devnull, os.O_RDWR))
    monkeypatch.setattr(subprocess, "Popen", fail)
    before = os.listdir("/dev/fd")
    suspend.Suspension(cast(Controller, controller))()
    assert os.listdir("/dev/fd") == before
    assert len(said) == 1
    assert said[0].endswith("press Ctrl-C to stop it" if missing == "shell" else "so it stays")


def test_a_process_with_the_id_of_a_rank_of_another_host_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(suspend, "_reads", lambda pid, terminal: True)
    monkeypatch.setattr(suspend, "_send", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(suspend.os, "isatty", lambda fd: True)
    ranks = [SimpleNamespace(rank=0, host="here", pid=11), SimpleNamespace(rank=1, host="there", pid=12)]
    hosts = [("here", True), ("there", False)]
    controller = SimpleNamespace(
        agents=SimpleNamespace(links=[SimpleNamespace(name=n, spec=SimpleNamespace(here=h)) for n, h in hosts]),
        status=SimpleNamespace(state=lambda history: SimpleNamespace(ranks=ranks)),
        screen=SimpleNamespace(warning=lambda text: None),
    )
    suspend.Suspension(cast(Controller, controller))._stop_readers()
    assert sent == [(11, signal.SIGSTOP)]
