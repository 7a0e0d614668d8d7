"""What only looks at a job cannot end it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from a_board import make_board

from muster.logs.files import LogFiles
from muster.logs.screen import Screen
from muster.run.fleet import Fleet
from muster.run.onlookers import Onlookers
from muster.run.record import Record
from muster.run.straggling import Straggling
from muster.run.watcher import Watcher
from muster.transports import Piped

pytestmark = pytest.mark.timeout(30)

UNKNOWN_TO_THE_BOARD: dict[str, Any] = {"t": "gauges"}
WELL: dict[str, Any] = {"t": "progress", "rank": 1, "time": 1.0, "moved": 1.0, "done": 7, "groups": {}}


def test_an_error_in_what_only_looks_is_told_once_and_the_others_go_on(tmp_path: Path):
    out = io.StringIO()
    screen = Screen(streams={1: out, 2: out})
    logs = LogFiles(screen.tell)
    board, link = make_board()
    fleet = Fleet(
        Piped(name="local", seats=(), commands=()),
        tmp_path,
        screen,
        on_event=lambda link, event: None,
        on_text=lambda host, text: None,
    )
    watcher = Watcher(fleet, board, screen, tmp_path)
    onlookers = Onlookers(board, Record(board, tmp_path, logs), watcher, Straggling(board, screen), screen)

    def no_words() -> str:
        raise LookupError("nothing is waited for")

    onlookers.on_event(link, UNKNOWN_TO_THE_BOARD)
    onlookers.on_event(link, UNKNOWN_TO_THE_BOARD)
    onlookers.tick([link], no_words)
    onlookers.on_event(link, WELL)
    onlookers.finish()
    logs.close()
    screen.close()
    assert board.state().ranks[1].collectives == 7
    assert watcher.heard[1].progress == WELL
    assert (tmp_path / "state.json").exists()
    (said,) = out.getvalue().splitlines()
    assert said.startswith("muster: what `muster ps`, `top` and the page show of this job may be wrong from here on: ")
    assert "KeyError: 'host' (board.py:" in said
    assert said.endswith(", a bug of Muster; the job goes on")
