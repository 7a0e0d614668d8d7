"""The clocks of the hosts agree."""

from __future__ import annotations

from statistics import median

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "log lines in the wrong order; rejected certificates, munge credentials or Kerberos tickets"

MOST = 0.05
"""Allowed clock difference in seconds, beyond measurement error. NTP keeps hosts within a few milliseconds."""

COMMANDS = {"timedatectl": "timedatectl set-ntp true", "ntpdate": "ntpdate pool.ntp.org"}


def judge(cluster: Cluster) -> Findings:
    """Compare each clock with the median of all clocks, including the local one."""
    known = [machine for machine in cluster.machines if machine.clock_error < float("inf")]
    middle = median([0.0, *(machine.clock for machine in known)])
    for machine in known:
        off = machine.clock - middle
        if abs(off) > MOST + machine.clock_error:
            what = f"the clock is {_seconds(abs(off))} {'ahead' if off > 0 else 'behind'}"
            command = COMMANDS.get(machine.answer(operating_system.clock) or "", "chronyc makestep")
            fix = Fix(command=f"{cluster.sudo(machine.name)}{command}", on=machine.name)
            yield Finding("warning", (machine.name,), what, SYMPTOM, fix, row=28)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


CHECK = Check(probe=operating_system.clock, judge=judge)
