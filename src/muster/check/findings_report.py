"""The report of `muster check`: differences between the hosts, then findings, worst first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import SEVERITIES, Finding
from muster.text import count, names

Facts = dict[str, dict[str, str]]
"""Facts by label, then by host."""


def facts(checks: Mapping[str, Check], cluster: Cluster) -> Facts:
    """The facts that the report shows."""
    found: Facts = {}
    for check in checks.values():
        if check.table is not None and check.probe is not None:
            for host, answer in cluster.answers(check.probe).items():
                try:
                    labeled = {label: str(value) for label, value in check.table(answer).items()}
                except Exception:
                    continue  # the answer is not what the probe returns; the findings say so
                for label, value in labeled.items():
                    found.setdefault(label, {})[host] = value
    return found


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of the report."""

    findings: Sequence[Finding]
    """Worst first."""
    facts: Facts
    measured: Facts
    """What ranks measured; these values always differ slightly."""
    cluster: Cluster
    hosts: int
    """Number of hosts the user asked for."""
    seconds: float


def render(report: Report) -> str:
    """The report as text."""
    blocks = [_table(report.facts, report.cluster, report.hosts), _measured(report.measured)]
    blocks += [paragraph(alike, report.cluster) for alike in grouped(report.findings)]
    blocks += [_unknown(report.cluster), _summary(report.findings, report.hosts, report.seconds)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def as_data(report: Report) -> dict[str, Any]:
    """The report as data for JSON."""
    return {
        "hosts": report.hosts,
        "seconds": round(report.seconds, 3),
        "facts": report.facts,
        "measured": report.measured,
        "findings": [{**asdict(found), "type": report.cluster.line(found.fix)} for found in report.findings],
        "unanswered": {machine.name: {**machine.broken, **machine.hung} for machine in report.cluster.machines},
        "probe_seconds": {machine.name: machine.seconds for machine in report.cluster.machines},
    }


def _measured(measured: Facts) -> str:
    rows = {label: [f"{value} ({host})" for host, value in values.items()] for label, values in measured.items()}
    return "\n".join(_rows("measured", rows))


def _rows(title: str, rows: Mapping[str, Sequence[str]]) -> list[str]:
    """A title and one line per label; empty if there are no labels."""
    width = max(map(len, rows), default=0)
    lines = [f"  {label:<{width}}  {'   '.join(values)}" for label, values in rows.items()]
    return [title, *lines] if lines else []


def _unknown(cluster: Cluster) -> str:
    """Checks without a result, so that a missing answer does not look like a pass."""
    lines: list[str] = []
    for machine in cluster.machines:
        why = {check: f"failed ({error})" for check, error in machine.broken.items()}
        why |= {check: f"timed out after {seconds:.0f} s" for check, seconds in machine.hung.items()}
        lines += [f"unknown: {machine.name}: check `{check}` {reason}" for check, reason in why.items()]
    return "\n".join(lines)


def _table(known: Facts, cluster: Cluster, hosts: int) -> str:
    differ: dict[str, list[str]] = {}
    same: list[str] = []
    for label, values in known.items():
        groups: dict[str, list[str]] = {}
        for host, value in values.items():
            groups.setdefault(value, []).append(host)
        if len(groups) > 1:
            largest_first = sorted(groups.items(), key=lambda item: -len(item[1]))
            differ[label] = [f"{value} ({names(on)})" for value, on in largest_first]
        else:
            same += [f"{label} {value}" for value in groups if value]
    where = "same on all hosts"
    if hosts == 1 and cluster.machines:
        only = cluster.machines[0]
        where = "this host" if only.login == () else only.name
    return "\n".join([*_rows("differences", differ), *([f"{where}: {'; '.join(same)}"] if same else [])])


def grouped(found: Sequence[Finding]) -> list[list[Finding]]:
    """Group findings that differ only in their hosts, so that each text is printed once."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in found:
        key = (finding.severity, finding.what, finding.symptom, finding.fix.command, finding.fix.say)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def paragraph(alike: Sequence[Finding], cluster: Cluster) -> str:
    """One finding as text, for one or several hosts."""
    first = alike[0]
    hosts = tuple(host for finding in alike for host in finding.hosts)
    lines = [f"{first.severity}: {replace(first, hosts=hosts).title}"]
    if first.symptom:
        lines.append(f"  Symptom: {first.symptom}")
    line = _line(alike, cluster)
    if line:
        lines.append(f"  Fix:     {line}")
    if first.fix.say:
        lines.append(f"           ({first.fix.say})" if line else f"  Fix:     {first.fix.say}")
    return "\n".join(lines)


def _line(alike: Sequence[Finding], cluster: Cluster) -> str:
    """The command, or one shell loop if several hosts are reached by ssh."""
    lines = list(dict.fromkeys(cluster.line(finding.fix) for finding in alike))
    names_of = [finding.fix.on for finding in alike]
    if len(lines) > 1 and all(name and cluster.machine(name).login == ("ssh", name) for name in names_of):
        return f"for h in {' '.join(names_of)}; do ssh $h {shlex.quote(alike[0].fix.command)}; done"
    return "\n           ".join(line for line in lines if line)


def _summary(found: Sequence[Finding], hosts: int, seconds: float) -> str:
    different = [alike[0].severity for alike in grouped(found)]
    counts = [(different.count(severity), severity) for severity in SEVERITIES]
    result = ", ".join(count(number, severity) for number, severity in counts if number) or "no problems found"
    return f"{count(hosts, 'host')} checked in {seconds:.1f} s: {result}"
