"""The report: what differs between the hosts, then what is wrong, worst first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import SEVERITIES, Finding
from muster.text import count, names

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
    blocks += [paragraph(alike, report.cluster) for alike in grouped(report.findings)]
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


def grouped(found: Sequence[Finding]) -> list[list[Finding]]:
    """What is said of several hosts in the same words is said once."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in found:
        key = (finding.severity, finding.what, finding.symptom, finding.fix.command, finding.fix.say)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def paragraph(alike: Sequence[Finding], cluster: Cluster) -> str:
    """One finding for people, of one host or of several."""
    first = alike[0]
    hosts = tuple(host for finding in alike for host in finding.hosts)
    lines = [f"{first.severity}: {replace(first, hosts=hosts).title}"]
    if first.symptom:
        lines.append(f"  you would see: {first.symptom}")
    line = _line(alike, cluster)
    if line:
        lines.append(f"  to mend it:    {line}")
    if first.fix.say:
        lines.append(f"  {'(' + first.fix.say + ')' if line else 'to mend it:    ' + first.fix.say}")
    return "\n".join(lines)


def _line(alike: Sequence[Finding], cluster: Cluster) -> str:
    """The command, or one loop where ssh leads to several hosts for it."""
    lines = list(dict.fromkeys(cluster.line(finding.fix) for finding in alike))
    names_of = [finding.fix.on for finding in alike]
    if len(lines) > 1 and all(name and cluster.machine(name).login == ("ssh", name) for name in names_of):
        return f"for h in {' '.join(names_of)}; do ssh $h {shlex.quote(alike[0].fix.command)}; done"
    return "\n                 ".join(line for line in lines if line)


def _summary(found: Sequence[Finding], hosts: int, seconds: float) -> str:
    counts = [(sum(finding.severity == severity for finding in found), severity) for severity in SEVERITIES]
    told = ", ".join(count(number, severity) for number, severity in counts if number) or "nothing wrong"
    return f"{count(hosts, 'host')} checked in {seconds:.1f} s: {told}"
