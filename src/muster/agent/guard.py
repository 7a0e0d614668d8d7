"""Sends entries for the debug log, including errors in the agent's monitoring code."""

from __future__ import annotations

import time

from ..rank.kept_errors import traceback_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Guard:
    """Reports errors that must not end the agent, once per subject, and log entries."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        self._send = send
        self._reported: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        """Report that `what` could not be determined."""
        if what not in self._reported:
            self._reported.add(what)
            why = f"{type(error).__name__}: {error}"
            self._send({"t": "unseen", "what": what, "why": why, "traceback": traceback_of(error)})

    def note(self, text: str, traceback: str = "") -> None:
        """Add a line to the job's debug log, with the traceback of an error, if any."""
        more = {"traceback": traceback} if traceback else {}
        self._send({"t": "log", "text": text, "time": time.time(), **more})
