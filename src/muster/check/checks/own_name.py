"""A host's own name stands for an address at which the others reach it: gloo offers that address to its peers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from muster.check.check import Check
from muster.check.cluster import Cluster
from muster.check.finding import Finding, Fix

REFUSED = "Gloo connectFullMesh failed ... Connection refused, remote=[{}], and on the other ranks: Connect timeout"
UNKNOWN = "Unable to resolve hostname to a (local) address. Using the loopback address as fallback"

VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman")


def probe(ask: dict[str, Any]) -> dict[str, Any]:
    """Ask one host."""
    import os
    import socket

    name = os.uname().nodename
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    with open("/etc/hosts") as file:
        entries = [line.partition("#")[0].split() for line in file]
    listed = [words[0] for words in entries if name in words[1:]]
    return {"name": name, "addresses": list(dict.fromkeys(str(info[4][0]) for info in found)), "listed": listed}


def judge(cluster: Cluster) -> Iterator[Finding]:
    """`muster run` sets GLOO_SOCKET_IFNAME where this is wrong, so it is a note; other launchers hang."""
    if len(cluster.machines) < 2:
        return
    for name, own in cluster.answers("own_name").items():
        address = own["addresses"][0] if own["addresses"] else None
        nics = cluster.machine(name).up["interfaces"]
        nic = next((nic["name"] for nic in nics if address in nic["addresses"]), "")
        if address is None:
            # row 4
            what, row = f"it does not know its own name, {own['name']}", 4
        elif address.startswith("127.") or address == "::1":
            # row 3
            what, row = f"its own name, {own['name']}, stands for {address}, where no other host finds it", 3
        elif nic.startswith(VIRTUAL):
            # row 5
            what, row = f"its own name, {own['name']}, stands for {address} of {nic}, which is not a real network", 5
        elif not nic:
            what, row = f"its own name, {own['name']}, stands for {address}, which it does not have", 4
        else:
            continue
        yield Finding(
            severity="note",
            hosts=(name,),
            what=what,
            symptom=UNKNOWN if address is None else REFUSED.format(address),
            fix=_fix(cluster, name, own),
            row=row,
        )


def _fix(cluster: Cluster, name: str, own: dict[str, Any]) -> Fix:
    good = best_address(cluster, name)
    if good is None:
        return Fix(say="put its name with an address of its own into its /etc/hosts")
    host, sudo = own["name"], cluster.sudo(name)
    # Taken out of the lines that have it, because one of them may name localhost too.
    drop = rf"s/[[:space:]]{host}\([[:space:]]\|$\)/\1/g; /^[0-9a-f.:]*[[:space:]]*$/d"
    add = f"echo {good} {host} | {sudo}tee -a /etc/hosts"
    return Fix(command=f"{sudo}sed -i '{drop}' /etc/hosts && {add}" if own["listed"] else add, on=name)


def best_address(cluster: Cluster, name: str) -> str | None:
    """The address at which most others reached a host; without a test, its first that is on no virtual network."""
    nics = [nic for nic in cluster.machine(name).up["interfaces"] if not nic["loopback"]]
    nics.sort(key=lambda nic: nic["name"].startswith(VIRTUAL))
    candidates = [address for nic in nics for address in nic["addresses"]]
    reached: list[str] = []
    if cluster.reach is not None:
        results = [result for tried in cluster.reach.tried.values() for result in tried if result["host"] == name]
        reached = [result["address"] for result in results if not result["problem"]]
    return max(candidates, key=lambda address: reached.count(address), default=None)


CHECK = Check(probe=probe, judge=judge)
