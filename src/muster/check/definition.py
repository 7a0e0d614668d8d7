"""The definition of a check, and how its probe is requested from an agent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.finding import Finding, worst_first
from muster.shared.requests import Probe, Question

_log = logging.getLogger("muster.check")

PROBE_LIMIT = 3.0
"""Default timeout of a probe in seconds; most take a millisecond."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of the hosts."""

    judge: Callable[[Cluster], Iterable[Finding]]
    """A pure function from the answers of all hosts to findings."""
    probe: Callable[[Question], Any] | None = None
    """Runs on each host: a function of `muster.agent.probes`, which is sent with the agent."""
    table: Callable[[Any], Mapping[str, str]] | None = None
    """Converts one host's answer to labeled facts for the report."""
    limit: float = PROBE_LIMIT


def load(names: Iterable[str]) -> dict[str, Check]:
    """Load the checks with these names."""
    return {name: import_module(f"muster.check.checks.{name}").CHECK for name in names}


def as_requests(checks: Mapping[str, Check]) -> list[Probe]:
    """The probes in the form of an agent request."""
    return [
        {"name": name, "probe": f"{probe.__module__.rpartition('.')[2]}.{probe.__name__}", "limit": check.limit}
        for name, check in checks.items()
        if (probe := check.probe) is not None
    ]


def judge_all(checks: Mapping[str, Check], cluster: Cluster) -> list[Finding]:
    """All findings, worst first."""
    found = [(name, finding) for name, check in checks.items() for finding in _judged(name, check, cluster)]
    return worst_first([replace(finding, check=name) for name, finding in found])


def _judged(name: str, check: Check, cluster: Cluster) -> list[Finding]:
    """The findings of one check; a host whose answer makes it fail is reported, because answers are not validated."""
    try:
        return list(check.judge(cluster))
    except Exception as error:
        _log.error("check %s: %r", name, error, exc_info=error)
        why = f"{type(error).__name__}: {error}"
        hosts = [one.name for one in cluster.machines if _fails(check, replace(cluster, machines=(one,)))]
        return [Finding("warning", tuple(hosts), f"could not judge the answer to the check `{name}` ({why})", "")]


def _fails(check: Check, cluster: Cluster) -> bool:
    try:
        list(check.judge(cluster))
    except Exception:
        return True
    return False
