"""Ctrl-Z where it cannot suspend the job."""

from __future__ import annotations

import os
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
