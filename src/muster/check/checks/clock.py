"""The clocks of the hosts agree."""

from __future__ import annotations

from statistics import median

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "logs that cannot be put in order; certificates, munge and Kerberos that are refused"

MOST = 0.05
"""Seconds a clock may differ, beyond what the way there leaves open. NTP keeps hosts within a few milliseconds."""

COMMANDS = {"timedatectl": "timedatectl set-ntp true", "ntpdate": "ntpdate pool.ntp.org"}


def judge(cluster: Cluster) -> Findings:
    """Each clock is held against the middle of all, ours among them."""
    known = [machine for machine in cluster.machines if machine.clock_error < float("inf")]
    middle = median([0.0, *(machine.clock for machine in known)])
    for machine in known:
        off = machine.clock - middle
        if abs(off) > MOST + machine.clock_error:
            what = f"its clock is {_seconds(abs(off))} {'ahead' if off > 0 else 'behind'}"
            command = COMMANDS.get(machine.answer(operating_system.clock) or "", "chronyc makestep")
            fix = Fix(command=f"{cluster.sudo(machine.name)}{command}", on=machine.name)
            yield Finding("warning", (machine.name,), what, SYMPTOM, fix, row=28)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


CHECK = Check(probe=operating_system.clock, judge=judge)
