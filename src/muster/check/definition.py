"""What a check is made of, and how its probe becomes text that travels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from muster.check.cluster_facts import Cluster
from muster.check.finding import Finding, worst_first
from muster.shared import requests

PROBE_LIMIT = 3.0
"""Seconds a probe may take unless it says otherwise; most take a millisecond."""

Probe = Callable[[dict[str, Any]], Any]
Judge = Callable[[Cluster], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that can be wrong with hosts."""

    judge: Judge
    """From all answers to findings; pure."""
    probe: Probe | None = None
    """Asks one host. Its source alone travels: it imports what it needs, from Python 3.9's standard library."""
    table: Callable[[Any], Mapping[str, str]] | None = None
    """From one host's answer to facts for people, by what they are called."""
    limit: float = PROBE_LIMIT


def load(names: Iterable[str]) -> dict[str, Check]:
    """The checks of these modules, by name."""
    return {name: import_module(f"muster.check.checks.{name}").CHECK for name in names}


def as_requests(checks: Mapping[str, Check]) -> list[requests.Probe]:
    """The probes as an agent takes them."""
    found: list[requests.Probe] = [
        {"name": name, "source": inspect.getsource(check.probe), "limit": check.limit}
        for name, check in checks.items()
        if check.probe is not None
    ]
    return found


def judge_all(checks: Mapping[str, Check], cluster: Cluster) -> list[Finding]:
    """All findings, worst first."""
    found = [replace(finding, check=name) for name, check in checks.items() for finding in check.judge(cluster)]
    return worst_first(found)
