"""What only looks at this host and its ranks may fail, and never ends the agent for it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Guard:
    """Tells the controller what cannot be seen here, and why: once for each."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        self._send = send
        self._told: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        """`what` could not be looked at now."""
        if what not in self._told:
            self._told.add(what)
            self._send({"t": "unseen", "what": what, "why": f"{type(error).__name__}: {error}"})
