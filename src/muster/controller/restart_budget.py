"""How often a job is restarted: a failure after progress is free, one without is counted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from muster.controller.diagnosis.verdict import Verdict, is_same_failure


@dataclass
class RestartBudget:
    """The restarts that are left."""

    limit: int
    """--restarts: how many failures in a row without progress are allowed."""
    used: int = 0
    best: int = 0
    """The most steps that an attempt has made."""
    previous: Verdict | None = None
    """How ranks failed the last time; the loss of a host does not change that."""

    def note(self, steps: int, *, has_saved: bool) -> None:
        """An attempt has failed after this many steps; a new checkpoint, or more steps than ever, is progress."""
        if (has_saved and steps) or steps > self.best:  # a script may save before its first step
            self.used = 0
        self.best = max(self.best, steps)

    def is_repeated(self, verdict: Verdict) -> bool:
        """Whether ranks failed at the same place as in the attempt before, without any progress, on whatever host."""
        return self.previous is not None and is_same_failure(self.previous, verdict)

    def spend(self, verdict: Verdict | None) -> bool:
        """Take one restart for this failure; None for the loss of a host. False if none is left."""
        if self.used >= self.limit:
            return False
        self.used += 1
        self.previous = self.previous if verdict is None else verdict
        return True
