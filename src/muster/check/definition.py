"""What a check is made of, and how its probe is named to an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.finding import Finding, worst_first
from muster.shared.requests import Probe, Question

PROBE_LIMIT = 3.0
"""Seconds a probe may take unless it says otherwise; most take a millisecond."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that can be wrong with hosts."""

    judge: Callable[[Cluster], Iterable[Finding]]
    """From all answers to findings; pure."""
    probe: Callable[[Question], Any] | None = None
    """Asks one host: a function of `muster.agent.probes`, which travels with the agent."""
    table: Callable[[Any], Mapping[str, str]] | None = None
    """From one host's answer to facts for people, by what they are called."""
    limit: float = PROBE_LIMIT


def load(names: Iterable[str]) -> dict[str, Check]:
    """The checks of these modules, by name."""
    return {name: import_module(f"muster.check.checks.{name}").CHECK for name in names}


def as_requests(checks: Mapping[str, Check]) -> list[Probe]:
    """The probes as an agent takes them."""
    return [
        {"name": name, "probe": f"{probe.__module__.rpartition('.')[2]}.{probe.__name__}", "limit": check.limit}
        for name, check in checks.items()
        if (probe := check.probe) is not None
    ]


def judge_all(checks: Mapping[str, Check], cluster: Cluster) -> list[Finding]:
    """All findings, worst first."""
    found = [replace(finding, check=name) for name, check in checks.items() for finding in check.judge(cluster)]
    return worst_first(found)
