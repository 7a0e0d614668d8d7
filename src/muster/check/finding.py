"""What a check has found: data, to be sorted, printed or turned into JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from muster.text import names

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first. error: a job on these hosts would fail. warning: it may fail, or run slower than it could.
note: `muster run` copes with it by itself; other launchers do not."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What makes a finding go away."""

    say: str = ""
    """In words, where no command can do it, or where the command needs a reason."""
    command: str = ""
    """For a shell."""
    on: str = ""
    """The host it is for; empty for this machine."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    severity: Severity
    hosts: tuple[str, ...]
    """Those at fault, never one that is not; none where it is not known whose fault it is."""
    what: str
    """One plain sentence about them, which follows their names."""
    symptom: str
    """What the user would have met in the job."""
    fix: Fix = Fix()
    row: int = 0
    """Its number in the catalogue of failures (docs/check.md)."""
    check: str = ""

    @property
    def title(self) -> str:
        """Hosts and sentence."""
        return f"{names(self.hosts)}: {self.what}" if self.hosts else self.what


Findings = Iterator[Finding]
"""What a judge returns."""


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes; within them in the order of the hosts they were found on."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
