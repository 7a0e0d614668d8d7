"""Ranks can use all CPUs of their host."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "everything on that host is slow, without any message, and the other ranks wait for it"


def judge(cluster: Cluster) -> Findings:
    """A scheduler may allocate only some CPUs, which is fine as long as each rank has one."""
    from muster.engines.table import built_in

    for name, found in cluster.answers(operating_system.cpus).items():
        machine = cluster.machine(name)
        allowed, online, quota = found["allowed"], found["online"], found["quota"]
        given = machine.tasks is not None or (found["everything"] and allowed < online)
        if quota is not None and quota < allowed:
            what = f"a cgroup limits CPU time to {quota:g} of {allowed} CPUs"
            fix = Fix(say=_more_time(cluster))
        elif allowed < online and not given:
            pid, comm = found["binder"]
            what = f"only {allowed} of {online} CPUs are usable: {comm} (process {pid}) is bound to them"
            fix = _unbind(cluster, name, pid, comm, online)
        elif allowed < machine.ranks and given:
            what = f"{machine.ranks} ranks share {f'{allowed} CPUs' if allowed > 1 else 'one CPU'}"
            ways = " or ".join(engine.more_cpus for engine in built_in() if engine.more_cpus)
            fix = Fix(say=f"request more CPUs, for example with {ways}")
        else:
            continue
        yield Finding("warning", (name,), what, SYMPTOM, fix, row=30)


def _more_time(cluster: Cluster) -> str:
    if cluster.wanted.pods:
        return "raise or remove resources.limits.cpu of the pod's container"
    return "remove --cpus from --container-args" if cluster.wanted.image else "raise cpu.max of the cgroup"


def _unbind(cluster: Cluster, name: str, pid: int, comm: str, online: int) -> Fix:
    if cluster.wanted.image:
        return Fix(say="remove --cpuset-cpus from --container-args")
    if not comm.startswith("sshd"):
        return Fix(say=f"find out what bound {comm}: taskset, numactl or a cpuset")
    return Fix(command=f"{cluster.sudo(name)}taskset -pc 0-{online - 1} {pid}", on=name)


CHECK = Check(probe=operating_system.cpus, judge=judge)
