"""Where the page has its news from: the controller of a running job, or the folder of one that has ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.page import logs

_FRESH = 0.5
"""Seconds in which a second reader gets what the first got: many readers cost the controller no more than one."""

_MOST_MOMENTS = 2000
"""Kept for the curves; when there are more, every other one is dropped."""

Data = dict[str, Any]
Ask = Callable[[float, bool], "Data | None"]
"""Asks the controller for its state, with the history after a time, and with or without stacks; None: no answer."""


class Source:
    """One job, running or ended; may be asked from many threads."""

    def __init__(self, folder: Path, ask: Ask) -> None:
        self.folder = folder
        self._ask = ask
        self._lock = threading.Lock()
        self._asked = 0.0
        self._state: Data | None = None
        self._history: list[Data] = []
        self._reports: list[Data] = []
        self._live = False
        self._read: tuple[int, int] | None = None
        """Time and size of the state.json that was read last."""

    @property
    def ended(self) -> bool:
        """There is no controller any more that could have news."""
        with self._lock:
            self._refresh()
            return self._state is not None and not self._live

    def state(self) -> Data | None:
        """The whole state, as `JobState.as_data()` gives it; None as long as there is none."""
        with self._lock:
            self._refresh()
            if self._state is None:
                return None
            return {**self._state, "history": list(self._history), "reports": list(self._reports)}

    def view(self, since: float) -> Data:
        """What the page needs each second: the state with the history after `since`, and no stacks."""
        with self._lock:
            self._refresh()
            state = self._state
            if state is not None:
                history = [moment for moment in self._history if moment["time"] > since]
                reports = [{**report, "stacks": len(report["stacks"])} for report in self._reports]
                state = {**state, "history": history, "reports": reports}
            return {"job": self.folder.name, "state": state, "live": self._live, "attempts": self._attempts()}

    def stacks(self, report: int) -> Data:
        """The stacks of a report, by rank."""
        with self._lock:
            return dict(self._reports[report]["stacks"])

    def log(self, rank: int, attempt: int) -> Path:
        """Where a rank's output is."""
        return self.folder / f"attempt-{attempt}" / f"rank-{rank}.log"

    def find(self, text: str, attempt: int) -> logs.Found:
        """Lines with some text in the logs of all ranks."""
        with self._lock:
            ranks = [rank["rank"] for rank in (self._state or {}).get("ranks", ())]
        return logs.find_in_all({rank: self.log(rank, attempt) for rank in ranks}, text)

    def _attempts(self) -> list[int]:
        names = [path.name.removeprefix("attempt-") for path in self.folder.glob("attempt-*")]
        return sorted(int(name) for name in names if name.isdigit())

    def _refresh(self) -> None:
        if time.monotonic() - self._asked < _FRESH:
            return
        last = self._history[-1]["time"] if self._history else 0.0
        state = self._ask(last, False)
        self._live = state is not None
        if state is not None:
            if len(state["reports"]) != len(self._reports):
                whole = self._ask(state["now"], True)
                self._reports = (whole or state)["reports"]
            self._history += [moment for moment in state["history"] if moment["time"] > last]
            if len(self._history) > _MOST_MOMENTS:
                self._history = self._history[::2]
            self._state = state
        else:
            self._read_file()
        self._asked = time.monotonic()

    def _read_file(self) -> None:
        """What the controller left, if it has changed."""
        path = self.folder / "state.json"
        try:
            status = path.stat()
            if self._read == (status.st_mtime_ns, status.st_size):
                return
            state: Data = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return  # not there yet, or not whole: the next look may find it
        self._read = (status.st_mtime_ns, status.st_size)
        self._state, self._reports, self._history = state, state["reports"], state["history"]
