"""How a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster.controller.diagnosis.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, and where its logs are."""

    job_id: str
    """As `muster ps` and `muster logs` know it."""
    exit_code: int
    """That of `muster run`: 0, or that of the first rank that failed; 124 for a hang, 125 for a lost host."""
    message: str
    """What went wrong, in one sentence; empty when all ranks ended well."""
    fix: str = ""
    """What to do about it, where that is known."""
    rank: int | None = None
    """The rank that failed first."""
    host: str | None = None
    """The host of that rank."""
    traceback: str = ""
    """Its traceback, or the last lines of its output."""
    folder: Path
    """The directory with the logs."""
    attempts: int = 1
    """How many times the ranks were started."""

    @property
    def ok(self) -> bool:
        """Whether every rank ended with exit code 0."""
        return self.exit_code == 0

    def log(self, rank: int) -> Path:
        """The file with the output of a rank, of the last attempt."""
        return self.folder / f"attempt-{self.attempts - 1}" / f"rank-{rank}.log"


def outcome_of(verdict: Verdict, job_id: str, folder: Path, attempts: int) -> Outcome:
    """The public form of a verdict."""
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
    """What happened, why, and what came of it, in one line."""
    return "; ".join(filter(None, (verdict.sentence, verdict.why, *verdict.notes)))
