"""Where the time of a job went."""

from __future__ import annotations

import time
from dataclasses import dataclass


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

    def __str__(self) -> str:
        phases = {
            "connected": self.connected,
            "imported": self.imported,
            "first collective": self.first_collective,
        }
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items() if seconds is not None)
