"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster.controller.diagnosis.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, and where its logs are."""

    job_id: str
    """The id that `muster ps` lists and `muster logs` takes."""
    exit_code: int
    """The same as from `muster run`: 0, or that of the first rank that failed; 124 for a hang, 125 for a lost host."""
    message: str
    """What went wrong, in one sentence; empty if all ranks succeeded."""
    fix: str = ""
    """How to fix it, if known."""
    rank: int | None = None
    """The rank that failed first."""
    host: str | None = None
    """The host of that rank."""
    traceback: str = ""
    """The traceback of that rank, or the last lines of its output."""
    folder: Path
    """The directory with the logs."""
    attempts: int = 1
    """How many times the ranks were started."""

    @property
    def ok(self) -> bool:
        """Whether every rank exited with code 0."""
        return self.exit_code == 0

    def log(self, rank: int) -> Path:
        """Return the file with a rank's output from the last attempt."""
        return self.folder / f"attempt-{self.attempts - 1}" / f"rank-{rank}.log"


def outcome_of(verdict: Verdict, job_id: str, folder: Path, attempts: int) -> Outcome:
    """Convert a verdict to its public form."""
    first = verdict.first
    return Outcome(
        job_id=job_id,
        exit_code=verdict.exit_code,
        message="" if verdict.ok else message_of(verdict),
        fix=verdict.fix,
        rank=first.rank if first is not None else None,
        host=first.host if first is not None else None,
        traceback=verdict.detail,
        folder=folder,
        attempts=attempts,
    )


def message_of(verdict: Verdict) -> str:
    """Return what happened, why, and the consequences, in one line."""
    return "; ".join(filter(None, (verdict.sentence, verdict.why, *verdict.notes)))
