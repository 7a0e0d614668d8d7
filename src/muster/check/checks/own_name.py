"""A host resolves its own name to an address that other hosts can reach; gloo gives that address to its peers.

Rows 3, 4, 5 and 13 of the catalog.
"""

from __future__ import annotations

from muster.agent.probes import host_network
from muster.check.cluster_facts import VIRTUAL, Cluster, Machine
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix
from muster.text import names

REFUSED = "Gloo connectFullMesh failed ... Connection refused, remote=[{}], and on the other ranks: Connect timeout"
UNKNOWN = "Unable to resolve hostname to a (local) address. Using the loopback address as fallback"


def judge(cluster: Cluster) -> Findings:
    """A note, because `muster run` sets GLOO_SOCKET_IFNAME on such hosts; with other launchers the job hangs."""
    if len(cluster.machines) < 2:
        return
    for name, own in cluster.answers(host_network.own_name).items():
        address = own["addresses"][0] if own["addresses"] else ""
        problem = _problem(cluster, name, own["name"], address)
        if problem is not None:
            what, row = problem
            symptom = REFUSED.format(address) if address else UNKNOWN
            yield Finding("note", (name,), what, symptom, _fix(cluster, name, own), row)


def _problem(cluster: Cluster, host: str, own: str, address: str) -> tuple[str, int] | None:
    nics = cluster.machine(host).up["interfaces"]
    nic = next((nic["name"] for nic in nics if address in nic["addresses"]), "")
    resolves = f"{own} resolves its own name to {address}"
    if not address:
        return f"cannot resolve its own name, {own}", 4
    if address.startswith("127.") or address == "::1":
        return f"{resolves}, which other hosts cannot reach", 3
    if not nic:
        return f"{resolves}, which is not an address of this host", 4
    if nic.startswith(VIRTUAL):
        return f"{resolves} on {nic}, a virtual network that other hosts cannot reach", 5
    without = [machine.name for machine in cluster.machines if not _has_ipv6(machine)]
    if ":" in address and without:
        return f"{resolves}, but {names(without)} {'has' if len(without) == 1 else 'have'} no IPv6", 13
    return None


def _has_ipv6(machine: Machine) -> bool:
    return any(":" in address for nic in machine.up["interfaces"] for address in nic["addresses"])


def _fix(cluster: Cluster, name: str, own: host_network.OwnName) -> Fix:
    good = cluster.address(name)
    if good is None:
        return Fix(say="add its name with a reachable address to its /etc/hosts")
    host, sudo = own["name"], cluster.sudo(name)
    add = f"echo {good} {host} | {sudo}tee -a /etc/hosts"
    if not own["listed"]:
        return Fix(command=add, on=name)
    wrong = next((address for address in own["listed"] if address != good), own["listed"][0])
    if wrong in own["shared"]:  # the line also lists localhost, which must stay
        drop = f'{sudo}sed -i "/^{wrong}[[:space:]]/s/[[:space:]]{host}//" /etc/hosts'
        return Fix(command=f"{drop} && {add}", on=name)
    return Fix(command=f'{sudo}sed -i "s/^{wrong}[[:space:]]/{good} /" /etc/hosts', on=name)


CHECK = Check(probe=host_network.own_name, judge=judge)
