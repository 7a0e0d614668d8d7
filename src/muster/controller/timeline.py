"""Where the time of a job went."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

_log = logging.getLogger("muster.controller")


@dataclass
class Timeline:
    """When things happened, as seconds since the command started."""

    begin: float
    connected: float | None = None
    imported: float | None = None
    first_collective: float | None = None

    def now(self) -> float:
        """Seconds since the command started."""
        return time.time() - self.begin

    def note(self, what: str) -> float:
        """Put into the debug log what has just happened; returns the seconds since the command started."""
        now = self.now()
        _log.info("%s, after %.3f s", what, now)
        return now

    def __str__(self) -> str:
        phases = {
            "connected": self.connected,
            "imported": self.imported,
            "first collective": self.first_collective,
        }
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items() if seconds is not None)
