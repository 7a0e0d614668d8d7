"""What the agent reports for the debug log: what it did, and errors in what only looks at this host and its ranks."""

from __future__ import annotations

import time

from ..rank.kept_errors import traceback_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Guard:
    """Reports errors that must not end the agent, once for each thing that cannot be seen, and notes for the log."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        self._send = send
        self._told: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        """`what` could not be looked at now."""
        if what not in self._told:
            self._told.add(what)
            why = f"{type(error).__name__}: {error}"
            self._send({"t": "unseen", "what": what, "why": why, "traceback": traceback_of(error)})

    def note(self, text: str) -> None:
        """Have a line written into the job's debug log."""
        self._send({"t": "log", "text": text, "time": time.time()})
