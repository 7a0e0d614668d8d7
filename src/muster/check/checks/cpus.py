"""Ranks may use the CPUs of their host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.cluster_facts import Cluster, Machine
from muster.check.definition import Check
from muster.check.finding import Finding, Fix

SYMPTOM = "everything on that host is slow, without a message, and the other ranks wait for it"


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host: which CPUs are allowed, by which of our ancestors, and how much of their time."""
    import os

    def parent(pid: int) -> int:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])

    allowed = os.sched_getaffinity(0)
    pid = binder = os.getpid()
    try:
        while pid > 1 and os.sched_getaffinity(pid) <= allowed:
            binder, pid = pid, parent(pid)
        with open(f"/proc/{binder}/comm") as file:
            comm = file.read().strip()
        # Where all is bound, from the first process on, a container was given these CPUs.
        everything = os.sched_getaffinity(1) <= allowed
    except OSError:
        comm, everything = "", False
    quota = None
    with open("/proc/self/cgroup") as file:
        groups = [line.strip().split(":", 2) for line in file]
    for _, kinds, own in groups:
        path: str = own
        while kinds in ("", "cpu", "cpu,cpuacct"):
            folder = f"/sys/fs/cgroup{'/' + kinds if kinds else ''}{path}"
            try:
                if kinds:
                    with open(f"{folder}/cpu.cfs_quota_us") as file:
                        limit = file.read().strip()
                    with open(f"{folder}/cpu.cfs_period_us") as file:
                        period = file.read().strip()
                else:
                    with open(f"{folder}/cpu.max") as file:
                        limit, period = file.read().split()
                if limit not in ("max", "-1"):
                    share = int(limit) / int(period)
                    quota = share if quota is None else min(quota, share)
            except (OSError, ValueError):
                pass
            if path in ("/", ""):
                break
            path = os.path.dirname(path)
    return {
        "allowed": len(allowed),
        "online": os.cpu_count(),
        "quota": quota,
        "binder": [binder, comm],
        "everything": everything,
    }


def judge(cluster: Cluster) -> Iterator[Finding]:
    """A scheduler gives some of the CPUs, and that is no fault as long as each rank has one."""
    from muster.engines.table import built_in

    for machine in cluster.machines:
        found = machine.answers.get("cpus")
        if found is None:
            continue
        allowed, online, quota = found["allowed"], found["online"], found["quota"]
        given = machine.tasks is not None or (found["everything"] and allowed < online)
        if quota is not None and quota < allowed:
            what = f"a control group gives it {quota:g} CPUs' worth of time, though it sees {allowed}"
            where = (
                "leave --cpus out of --container-args" if cluster.wanted.image else "raise cpu.max of its control group"
            )
            fix = Fix(say=where)
        elif allowed < online and not given:
            pid, comm = found["binder"]
            what = f"it may use {allowed} of its {online} CPUs: {comm} (process {pid}) is bound to them"
            fix = _unbind(cluster, machine, pid, comm, online)
        elif allowed < machine.ranks and given:
            what = (
                f"{machine.ranks} ranks share {allowed} CPUs" if allowed > 1 else f"{machine.ranks} ranks share one CPU"
            )
            ways = " or ".join(engine.more_cpus for engine in built_in() if engine.more_cpus)
            fix = Fix(say=f"ask for more, as with {ways}")
        else:
            continue
        # row 30
        yield Finding(severity="warning", hosts=(machine.name,), what=what, symptom=SYMPTOM, fix=fix, row=30)


def _unbind(cluster: Cluster, machine: Machine, pid: int, comm: str, online: int) -> Fix:
    if cluster.wanted.image:
        return Fix(say="leave --cpuset-cpus out of --container-args")
    if not comm.startswith("sshd"):
        return Fix(say=f"see why {comm} was bound: taskset, numactl or a cpuset")
    return Fix(command=f"{cluster.sudo(machine.name)}taskset -pc 0-{online - 1} {pid}", on=machine.name)


CHECK = Check(probe=probe, judge=judge)
