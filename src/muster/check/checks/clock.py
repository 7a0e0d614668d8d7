"""The clocks of the hosts agree."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

SYMPTOM = "logs that cannot be put in order; certificates, munge and Kerberos that are refused"

MOST = 0.05
"""Seconds a clock may differ, beyond what the way there leaves open. NTP keeps hosts within a few milliseconds."""


def judge(cluster: Cluster) -> Iterator[Finding]:
    """Each clock is held against the middle of all, ours among them."""
    known = [machine for machine in cluster.machines if machine.clock_error < float("inf")]
    if not known:
        return
    middle = median([0.0, *(machine.clock for machine in known)])
    for machine in known:
        off = machine.clock - middle
        if abs(off) <= MOST + machine.clock_error:
            continue
        # row 28
        yield Finding(
            severity="warning",
            hosts=(machine.name,),
            what=f"its clock is {_seconds(abs(off))} {'ahead' if off > 0 else 'behind'}",
            symptom=SYMPTOM,
            fix=Fix(
                command=f"{cluster.sudo(machine.name)}{_command(machine.answers.get('clock', ''))}", on=machine.name
            ),
            row=28,
        )


def probe(ask: dict[str, object]) -> str:
    """Ask one host: which program keeps its time."""
    import os

    folders = os.environ.get("PATH", "").split(":")
    for name in ("chronyc", "timedatectl", "ntpdate"):
        if any(os.access(f"{folder}/{name}", os.X_OK) for folder in folders):
            return name
    return ""


def _command(program: str) -> str:
    return {"timedatectl": "timedatectl set-ntp true", "ntpdate": "ntpdate pool.ntp.org"}.get(
        program, "chronyc makestep"
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


CHECK = Check(probe=probe, judge=judge)
