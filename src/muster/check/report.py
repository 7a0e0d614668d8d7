"""The report: what differs between the hosts, then what is wrong, worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def render(found: Sequence[Finding], known: Facts, cluster: Cluster, *, hosts: int, seconds: float) -> str:
    """The report for people."""
    blocks = [_table(known, hosts)]
    blocks += [paragraph(finding, cluster) for finding in found]
    blocks.append(_summary(found, hosts, seconds))
    return "\n\n".join(block for block in blocks if block) + "\n"


def as_data(found: Sequence[Finding], known: Facts, cluster: Cluster, *, hosts: int, seconds: float) -> dict[str, Any]:
    """The report for programs."""
    return {
        "hosts": hosts,
        "seconds": round(seconds, 3),
        "facts": known,
        "findings": [{**finding.as_data(), "type": cluster.line(finding.fix)} for finding in found],
    }


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
