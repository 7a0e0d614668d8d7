"""The report: what differs between the hosts, then what is wrong, worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.check.check import Check
from muster.check.cluster import Cluster
from muster.check.finding import SEVERITIES, Finding
from muster.run.words import count, names

Facts = dict[str, dict[str, str]]
"""By what is asked, then by host."""


def facts(checks: Mapping[str, Check], cluster: Cluster) -> Facts:
    """Every fact for people."""
    found: Facts = {}
    for name, check in checks.items():
        if check.table is not None:
            for host, answer in cluster.answers(name).items():
                for label, value in check.table(answer).items():
                    found.setdefault(label, {})[host] = value
    return found


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that is told."""

    findings: Sequence[Finding]
    """Worst first."""
    facts: Facts
    measured: Facts
    """What ranks measured: it always differs a little."""
    cluster: Cluster
    hosts: int
    """How many were asked for."""
    seconds: float


def render(report: Report) -> str:
    """The report for people."""
    blocks = [_table(report.facts, report.hosts), _measured(report.measured)]
    blocks += [paragraph(finding, report.cluster) for finding in report.findings]
    blocks += [_unknown(report.cluster), _summary(report.findings, report.hosts, report.seconds)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def as_data(report: Report) -> dict[str, Any]:
    """The report for programs."""
    return {
        "hosts": report.hosts,
        "seconds": round(report.seconds, 3),
        "facts": report.facts,
        "measured": report.measured,
        "findings": [{**found.as_data(), "type": report.cluster.line(found.fix)} for found in report.findings],
        "unanswered": {machine.name: {**machine.broken, **machine.hung} for machine in report.cluster.machines},
        "probe_seconds": {machine.name: machine.seconds for machine in report.cluster.machines},
    }


def _measured(measured: Facts) -> str:
    if not measured:
        return ""
    width = max(map(len, measured))
    lines = [
        f"  {label:<{width}}  {'   '.join(f'{value} ({host})' for host, value in values.items())}"
        for label, values in measured.items()
    ]
    return "\n".join(["measured", *lines])


def _unknown(cluster: Cluster) -> str:
    """What could not be found out, so that silence is not taken for health."""
    lines = [
        f"not known: {machine.name}: the check `{check}` {why}"
        for machine in cluster.machines
        for check, why in (
            *((check, f"failed there ({error})") for check, error in machine.broken.items()),
            *((check, f"took longer than {seconds:.0f} s there") for check, seconds in machine.hung.items()),
        )
    ]
    return "\n".join(lines)


def _table(known: Facts, hosts: int) -> str:
    differ = {label: values for label, values in known.items() if len(set(values.values())) > 1}
    same = {label: next(iter(values.values())) for label, values in known.items() if label not in differ and values}
    lines: list[str] = []
    if differ:
        lines.append("what differs")
        width = max(map(len, differ))
        for label, values in differ.items():
            groups: dict[str, list[str]] = {}
            for host, value in values.items():
                groups.setdefault(value, []).append(host)
            told = [f"{value} ({names(on)})" for value, on in sorted(groups.items(), key=lambda item: -len(item[1]))]
            lines.append(f"  {label:<{width}}  {'   '.join(told)}")
    if same:
        where = "this host has" if hosts == 1 else "the same on all" if not differ else "all else is the same"
        lines.append(f"{where}: " + "; ".join(f"{label} {value}" for label, value in same.items() if value))
    return "\n".join(lines)


def paragraph(finding: Finding, cluster: Cluster) -> str:
    """One finding for people."""
    lines = [f"{finding.severity}: {finding.title}"]
    if finding.symptom:
        lines.append(f"  you would see: {finding.symptom}")
    line = cluster.line(finding.fix)
    if line:
        lines.append(f"  to mend it:    {line}")
    if finding.fix.say:
        lines.append(f"  {'(' + finding.fix.say + ')' if line else 'to mend it:    ' + finding.fix.say}")
    return "\n".join(lines)


def _summary(found: Sequence[Finding], hosts: int, seconds: float) -> str:
    counts = [(sum(finding.severity == severity for finding in found), severity) for severity in SEVERITIES]
    told = ", ".join(count(number, severity) for number, severity in counts if number) or "nothing wrong"
    return f"{count(hosts, 'host')} checked in {seconds:.1f} s: {told}"
