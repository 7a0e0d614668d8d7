"""The network interface chosen for gloo and NCCL exists on every host, and other hosts can reach it."""

from __future__ import annotations

from collections.abc import Sequence

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster, Machine
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.check.fixes import unset
from muster.shared.host_state import Interface

GLOO = "Unable to find address for: {}, on one rank; the others: wait timeout after 12000ms"
NCCL = "NCCL WARN Bootstrap : no socket interface found"
BY_TESTING = "Muster then tests the network interfaces and picks one that works"
ALONE = "every host connects to itself: Connect timeout, after a minute"


def judge(cluster: Cluster) -> Findings:
    """An interface that a host does not have makes the job fail."""
    several = len(cluster.machines) > 1
    chosen = cluster.wanted.interface
    for machine in cluster.machines:
        nics = machine.up["interfaces"]
        if chosen is not None and not _addresses(nics, [chosen]):
            what = f"--interface {chosen}: {_lacks(nics, chosen)}"
            fix = Fix(command=cluster.wanted.typed("--interface"), say=BY_TESTING)
            yield Finding("error", (machine.name,), what, GLOO.format(chosen), fix, row=6)
        elif chosen is None:
            answer = machine.answer(operating_system.variables)
            env = answer["env"] if answer else {}
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                if variable in env:
                    yield from _variable(cluster, machine, variable, env[variable], several=several)


def _variable(cluster: Cluster, machine: Machine, variable: str, value: str, *, several: bool) -> Findings:
    nics = machine.up["interfaces"]
    gloo = variable.startswith("GLOO")
    names = _named(value, nics, gloo=gloo)
    loopback = bool(names) and _only_loopback(nics, names)
    if not value or (names and _addresses(nics, names) and not (several and loopback)):
        return
    used = gloo != bool(machine.up["gpus"])
    problem = "a loopback interface, which other hosts cannot reach" if loopback else _lacks(nics, value)
    what = f"{variable}={value}: {problem}"
    symptom = ALONE if loopback else GLOO.format(value) if gloo else NCCL
    fix = unset(cluster, machine.name, variable, BY_TESTING)
    yield Finding("error" if used else "warning", (machine.name,), what, symptom, fix, row=6)


def _named(value: str, nics: Sequence[Interface], *, gloo: bool) -> list[str]:
    """The interfaces a value selects: gloo takes names; NCCL takes prefixes, `=` exact names, `^` excluded prefixes."""
    have = [nic["name"] for nic in nics]
    parts = [part for part in value.lstrip("=^").split(",") if part]
    if gloo:
        return parts if all(part in have for part in parts) else []
    if value.startswith("="):
        return [name for name in have if name in parts]
    begins = [name for name in have if name.startswith(tuple(parts))]
    return [name for name in have if name not in begins] if value.startswith("^") else begins


def _addresses(nics: Sequence[Interface], names: list[str]) -> list[str]:
    return [address for nic in nics if nic["name"] in names for address in nic["addresses"]]


def _only_loopback(nics: Sequence[Interface], names: list[str]) -> bool:
    return all(nic["loopback"] for nic in nics if nic["name"] in names)


def _lacks(nics: Sequence[Interface], name: str) -> str:
    have = ", ".join(nic["name"] for nic in nics if nic["addresses"] and not nic["loopback"])
    known = any(nic["name"] == name for nic in nics)
    return f"the interface has no address (available: {have})" if known else f"no such interface (available: {have})"


CHECK = Check(judge=judge)
