"""The findings of checks, as data that can be sorted, printed or converted to JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from muster.text import names

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first. error: a job on these hosts would fail. warning: it may fail, or run slower than it could.
note: `muster run` works around it; other launchers do not."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """How to fix a finding."""

    say: str = ""
    """Text, if no command can fix it or the command needs an explanation."""
    command: str = ""
    """A shell command."""
    on: str = ""
    """The host to run it on; empty for this machine."""


@dataclass(frozen=True)
class Finding:
    """One problem."""

    severity: Severity
    hosts: tuple[str, ...]
    """The hosts at fault; empty if the fault cannot be attributed."""
    what: str
    """One plain sentence, printed after the host names."""
    symptom: str
    """What the user would see in the job."""
    fix: Fix = Fix()
    row: int = 0
    """Its row in the catalog of failures (docs/check.md)."""
    check: str = ""

    @property
    def title(self) -> str:
        """The hosts and the sentence."""
        return f"{names(self.hosts)}: {self.what}" if self.hosts else self.what


Findings = Iterator[Finding]
"""The result type of a judge."""


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes; otherwise the order is kept."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
